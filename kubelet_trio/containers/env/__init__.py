"""A container's environment: its variables, their sources, and references to them."""
