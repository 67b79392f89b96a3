"""What a pod's worker does next: pure decisions."""
