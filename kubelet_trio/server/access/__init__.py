"""Authentication and authorization of requests to the kubelet API."""
