"""The worker of each pod, the registry that starts the workers, and their admission."""
