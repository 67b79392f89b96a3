"""The status of a pod, computed from what the runtime holds."""
