"""The routers: health, the control socket, the kubelet API, the node page."""
