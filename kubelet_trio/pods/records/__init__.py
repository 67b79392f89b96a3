"""What the agent keeps on disk for a pod."""
