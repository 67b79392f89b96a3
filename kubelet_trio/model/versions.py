"""The Kubernetes version that the agent follows, for version skew checks of others."""

from __future__ import annotations

KUBERNETES_VERSION = "v1.36.2"
# As the Node reports it. The suffix is build metadata, which comparisons ignore
# (https://semver.org).
KUBELET_VERSION = f"{KUBERNETES_VERSION}+kubelet-trio"
