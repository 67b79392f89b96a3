"""The worker of each pod, and the registry that starts the workers."""
