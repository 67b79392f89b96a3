"""Asks the container runtime about itself, by CRI."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import trio

from kubelet_trio.install.facts import RuntimeFacts

if TYPE_CHECKING:
    from kubelet_trio.cri import Runtime

_LIMIT = 10.0  # seconds for all questions
_CONNECT_LIMIT = 5.0


def ask_runtime(endpoint: str) -> RuntimeFacts:
    """Return what the runtime at an endpoint says. Blocks; it raises nothing."""
    if endpoint == "process":
        return RuntimeFacts()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_CONNECT_LIMIT)
        try:
            sock.connect(endpoint.removeprefix("unix://"))
        except OSError as exc:
            return RuntimeFacts(error=exc.strerror or str(exc), is_down=True)
    return trio.run(_ask, endpoint)


async def _ask(endpoint: str) -> RuntimeFacts:
    from kubelet_trio.cri import RemoteRuntime, RuntimeCallError

    runtime = RemoteRuntime(endpoint, request_timeout=_LIMIT)
    facts = RuntimeFacts(error=f"no answer within {_LIMIT:g} s")
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        with trio.move_on_after(_LIMIT):
            try:
                facts = await ask(runtime)
            except RuntimeCallError as exc:
                facts = RuntimeFacts(error=str(exc))
        nursery.cancel_scope.cancel()
    return facts


async def ask(runtime: Runtime) -> RuntimeFacts:
    """Return what a runtime says. Raises `RuntimeCallError`."""
    from kubelet_trio.cri import v1

    version = await runtime.version()
    status = (await runtime.status()).status
    config = await runtime.runtime_config()
    linux = config.linux if config else None
    image = await runtime.sandbox_image()
    has_image = bool(image) and await runtime.image_status(v1.ImageSpec(image=image)) is not None
    network = [c for c in status.conditions if c.type == "NetworkReady"] if status else []
    return RuntimeFacts(
        name=version.runtime_name,
        version=version.runtime_version,
        cgroup_driver="" if linux is None else (linux.cgroup_driver.name or "").lower(),
        network_problem=next((c.message or c.reason for c in network if not c.status), ""),
        sandbox_image=image,
        has_sandbox_image=has_image,
    )
