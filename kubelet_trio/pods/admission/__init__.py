"""Whether the node takes a pod: pure decisions."""
