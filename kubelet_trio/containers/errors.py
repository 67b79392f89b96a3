"""The errors of turning a pod into runtime configs.

ConfigError                  the pod cannot run as written
├── ContainerConfigError     one container; its waiting reason is CreateContainerConfigError
└── SandboxConfigError       the pod's sandbox
"""

from __future__ import annotations


class ConfigError(Exception):
    """A pod cannot be turned into a runtime's config. The text goes into its status and event."""


class ContainerConfigError(ConfigError):
    """One container cannot be configured."""


class SandboxConfigError(ConfigError):
    """The pod's sandbox cannot be configured."""
