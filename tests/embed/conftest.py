"""The fixtures that embedders get, and the pods of these tests."""

from kubelet_trio.testing.pytest_plugin import fake_runtime, kubelet, kubelet_config

__all__ = ["fake_runtime", "kubelet", "kubelet_config"]
