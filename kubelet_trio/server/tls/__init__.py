"""TLS of the kubelet API."""
