"""Pages and profiles of the agent's own process."""
