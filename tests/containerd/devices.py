"""Pods with devices of a plugin, and what their containers have of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness import CriClient, Json, container, forever, live_containers, pod
from tests.harness.device_plugin import ENV
from tests.harness.devices import DevicePlugin, PluginConfig

MakePlugin = Callable[..., DevicePlugin]


def needs(resource: str, count: int = 1) -> Json:
    """Return the resources of a container that needs devices."""
    return {"limits": {resource: str(count)}, "requests": {resource: str(count)}}


def device_pod(name: str, resource: str, count: int = 1, **spec: Any) -> Json:
    """Return a pod of one container with devices."""
    return pod(name, container("main", forever(), resources=needs(resource, count)), **spec)


def given(cri: CriClient, pod_name: str) -> list[str]:
    """Return the devices of the running container `main`, by its environment."""
    live = live_containers(cri, pod_name)["main"]
    return cri.run(live, "sh", "-c", f"echo ${ENV}").strip().split(",")


def pid_of(cri: CriClient, pod_name: str) -> int:
    return cri.container_pid(live_containers(cri, pod_name)["main"])


@contextmanager
def plugins(base: Path, root: Path, is_grpcio: bool) -> Iterator[MakePlugin]:
    """Give a function that makes plugins of one kind, not yet started; they are closed at the end.

    It takes the resource and fields of `PluginConfig`.
    """
    made: list[DevicePlugin] = []

    def make(resource: str, **fields: Any) -> DevicePlugin:
        config = PluginConfig(resource, is_grpcio=is_grpcio, **fields)
        made.append(DevicePlugin(base / f"plugin{len(made)}", root, config))
        return made[-1]

    try:
        yield make
        for plugin in made:
            if plugin.is_running:
                plugin.check()
    finally:
        for plugin in made:
            plugin.close()
