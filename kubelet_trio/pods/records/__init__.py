"""What the agent keeps of a pod on disk and beyond the life of its worker."""
