"""Container logs: their format, their files and links on disk, and following one."""
