"""The commands: each module is imported when one of its commands is called."""
