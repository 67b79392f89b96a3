"""The node's cgroups above and of pods: kept in line with the pods, and cleaned up."""
