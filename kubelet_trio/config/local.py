"""What nobody said, on this machine and for this user.

The Go kubelet's defaults are root's: /var/lib/kubelet, /var/log/pods, containerd's socket. Another
user gets directories below their own state directory, and where there is no container
runtime that we may use, pods run as processes of the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from kubelet_trio.config.load import Settings

PROCESS = "process"  # the endpoint that means the embedded runtime


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """The machine and the user, as far as defaults depend on them."""

    is_root: bool
    root_dir: str  # where a user keeps the agent's files by default
    socket: str | None = None  # of a CRI runtime that we may talk to
    runtime_installed: bool = False  # a CRI runtime is there, even if its socket is not (yet)


def settle_locally(settings: Settings, facts: LocalFacts) -> Settings:
    """Return the settings with the defaults of this machine and user."""
    config, flags, notes = settings.config, settings.flags, settings.notes
    if not facts.is_root:
        if "--root-dir" not in settings.given:
            flags = replace(flags, root_dir=facts.root_dir)
        if "--cert-dir" not in settings.given:
            flags = replace(flags, cert_dir=f"{flags.root_dir}/pki")
        if "podLogsDir" not in settings.given:
            config = msgspec.structs.replace(config, pod_logs_dir=f"{flags.root_dir}/logs/pods")
    if "containerRuntimeEndpoint" not in settings.given:
        if facts.socket is not None:
            endpoint = f"unix://{facts.socket}"
        elif facts.is_root and facts.runtime_installed:
            # A node at boot: its runtime is on its way up, and pods are not to run elsewhere.
            endpoint = config.container_runtime_endpoint
        else:
            endpoint = PROCESS
            notes = (
                *notes,
                "no container runtime is found that this user may use, so pods run as processes "
                "of this host, without images and isolation; --container-runtime-endpoint names "
                "another one",
            )
        config = msgspec.structs.replace(config, container_runtime_endpoint=endpoint)
    return replace(settings, config=config, flags=flags, notes=notes)
