"""Measurements of the agent on a private containerd: `python -m bench`."""
