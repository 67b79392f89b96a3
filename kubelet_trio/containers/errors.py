"""The errors of turning a pod into runtime configs.

PodConfigError                  the pod cannot run as written
├── ContainerConfigError     one container; its waiting reason is CreateContainerConfigError
└── SandboxConfigError       the pod's sandbox
"""

from __future__ import annotations


class PodConfigError(Exception):
    """A pod cannot be turned into a runtime's config. The text goes into its status and event."""


class ContainerConfigError(PodConfigError):
    """One container cannot be configured."""


class SandboxConfigError(PodConfigError):
    """The pod's sandbox cannot be configured."""
