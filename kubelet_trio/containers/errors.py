"""What turning a pod into runtime configs may raise.

ConfigError                  the pod asks for what cannot be had as written
├── ContainerConfigError     one container: its waiting reason is CreateContainerConfigError
└── SandboxConfigError       the whole pod: no sandbox can be made of it
"""

from __future__ import annotations


class ConfigError(Exception):
    """A pod cannot be turned into a runtime's config. The text is for its status and event."""


class ContainerConfigError(ConfigError):
    """One container cannot be configured."""


class SandboxConfigError(ConfigError):
    """The pod's sandbox cannot be configured."""
