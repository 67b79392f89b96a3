"""Watches whether the runtime answers and is ready; pod workers wait for that.

One task calls `Status` every few seconds; pod workers, the health endpoint and `kubelet-trio
status` read the result. A runtime that is down is a state here, never a failure.

Pods are no longer synced (`is_usable`) as soon as the runtime cannot be reached or reports that it
is not ready. If Status is only slow or fails, that takes 30 s: other calls may still succeed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import trio
from trio_util import AsyncValue

from kubelet_trio.cri.errors import RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.protocol import Runtime
from kubelet_trio.model import Bell, get_logger, next_due

log = get_logger()

_PERIOD = 5.0
# While the runtime is down, ask often: a refused connection is cheap.
_PERIOD_DOWN = 0.5
_STATUS_DEADLINE = 10.0
# How long pods are still synced after the last good Status of a runtime that answers late or with
# errors. Source: maxWaitForContainerRuntime in kubelet.go.
_MAX_WAIT = 30.0
_VERSION_PERIOD = 60.0  # s between calls of Version: a runtime may be upgraded unnoticed


CgroupDriverName = Literal["cgroupfs", "systemd"]
# The first version that mounts images as volumes (KEP-4639); None: none does.
_IMAGE_VOLUMES_SINCE: dict[str, tuple[int, int] | None] = {
    "containerd": (2, 1),
    "cri-o": (1, 31),
    "process": None,
}
_DRIVERS: dict[str, CgroupDriverName] = {  # by CRI's names
    "CGROUPFS": "cgroupfs",
    "SYSTEMD": "systemd",
}


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """The runtime's last known state. Without a problem `problem` is ""."""

    problem: str = "container runtime status has not been read yet"
    network_problem: str = "container runtime network is not ready yet"
    name: str = "containerd"  # from Version; container ids in statuses begin with it
    version: str = ""
    cgroup_driver: CgroupDriverName | None = None  # from RuntimeConfig; None: not reported
    has_config: bool = True  # whether it has the call RuntimeConfig; if unknown, too
    handlers: frozenset[str] = frozenset()  # names for runtime classes; "" is the default handler
    recursive_read_only: frozenset[str] = frozenset()  # handlers with recursive read-only mounts
    user_namespaces: frozenset[str] = frozenset()  # handlers with user namespaces
    supplemental_groups_policy: bool = False  # whether the policy Strict is supported
    is_usable: bool = False  # whether pods may be synced

    @property
    def is_ready(self) -> bool:
        return not self.problem

    @property
    def no_image_volumes(self) -> str:
        """Why the runtime cannot mount an image as a volume; "" if it can."""
        # CRI does not report this feature, so we go by name and version. An older runtime ignores
        # the image in the mount and would mount an empty host path.
        needed = _IMAGE_VOLUMES_SINCE.get(self.name, (0, 0))
        if needed is None:
            return f"image volumes are not supported by the runtime {self.name}"
        numbers = re.match(r"v?(\d+)\.(\d+)", self.version)
        if numbers is None or (int(numbers[1]), int(numbers[2])) >= needed:
            return ""
        return (
            f"image volumes are not supported by {self.name} {self.version}: "
            f"it must be {needed[0]}.{needed[1]} or later"
        )

    @property
    def is_network_ready(self) -> bool:
        return self.is_ready and not self.network_problem


class RuntimeHealth:
    """Keeps `state` up to date."""

    def __init__(
        self, runtime: Runtime, on_change: Callable[[RuntimeState], None] = lambda _state: None
    ) -> None:
        self._runtime = runtime
        self._on_change = on_change
        self._next_version_at = -inf  # trio time of the next call of Version
        self._logged_driver = ""  # an unknown driver, logged once
        self._good_at = -inf  # trio time of the last good Status
        self._asked_for = Bell()
        self.state: AsyncValue[RuntimeState] = AsyncValue(RuntimeState())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Call Status until cancelled; ready after the first answer or failure."""
        await self._ask()
        task_status.started()
        while True:
            is_ready = self.state.value.is_ready
            due = next_due(_PERIOD) if is_ready else trio.current_time() + _PERIOD_DOWN
            with trio.move_on_at(due):
                await self._asked_for.wait_ring()
            await self._ask()

    def ask_soon(self) -> None:
        """Call Status now instead of at the end of the period. Never blocks."""
        self._asked_for.ring()

    async def _ask(self) -> None:
        before = self.state.value
        after = await self._read(before)
        if after == before:
            return
        self.state.value = after
        if after.problem:
            log.warning("runtime.not_ready", problem=after.problem)
        elif not before.is_ready:
            log.info("runtime.ready", name=after.name, version=after.version)
        if after.is_ready and after.network_problem != before.network_problem:
            log.info("runtime.network", problem=after.network_problem or None)
        self._on_change(after)

    async def _read(self, before: RuntimeState) -> RuntimeState:
        try:
            with trio.fail_after(_STATUS_DEADLINE):
                answer = await self._runtime.status()
                known = await self._read_version(before)
        except trio.TooSlowError:
            return self._without_answer(before, f"no answer to Status within {_STATUS_DEADLINE:g}s")
        except RuntimeUnavailableError as exc:
            return replace(before, problem=str(exc), is_usable=False)
        except RuntimeCallError as exc:
            return self._without_answer(before, str(exc))
        status = answer.status or v1.RuntimeStatus()
        conditions = {c.type: c for c in status.conditions}
        handlers = {
            h.name: h.features or v1.RuntimeHandlerFeatures() for h in answer.runtime_handlers
        }
        features = answer.features or v1.RuntimeFeatures()
        problem = _problem(conditions.get("RuntimeReady"), "RuntimeReady")
        if not problem:
            self._good_at = trio.current_time()  # the network's condition does not matter here
        return replace(
            known,
            handlers=frozenset(handlers),
            recursive_read_only=frozenset(
                name for name, can in handlers.items() if can.recursive_read_only_mounts
            ),
            user_namespaces=frozenset(n for n, can in handlers.items() if can.user_namespaces),
            supplemental_groups_policy=features.supplemental_groups_policy,
            problem=problem,
            is_usable=not problem,
            network_problem=_problem(conditions.get("NetworkReady"), "NetworkReady"),
        )

    def _without_answer(self, before: RuntimeState, problem: str) -> RuntimeState:
        """Return the state of a runtime that is reachable, but whose Status is late or fails."""
        is_usable = before.is_usable and trio.current_time() < self._good_at + _MAX_WAIT
        return replace(before, problem=problem, is_usable=is_usable)

    async def _read_version(self, before: RuntimeState) -> RuntimeState:
        """Call Version and RuntimeConfig, once a minute and after the runtime was not ready."""
        if trio.current_time() < self._next_version_at and before.is_ready:
            return before
        version = await self._runtime.version()
        config = await self._runtime.runtime_config()
        self._next_version_at = next_due(_VERSION_PERIOD)
        return replace(
            before,
            name=version.runtime_name,
            version=version.runtime_version,
            cgroup_driver=self._known_driver(config.linux if config else None),
            has_config=config is not None,
        )

    def _known_driver(self, linux: v1.LinuxRuntimeConfiguration | None) -> CgroupDriverName | None:
        """Return the driver; None if CRI has no such driver, so that the configured one is used."""
        if linux is None:
            return None
        driver = linux.cgroup_driver
        known = _DRIVERS.get(driver.name or "")
        if known is None and self._logged_driver != repr(driver):
            self._logged_driver = repr(driver)
            log.warning(
                "runtime.cgroup_driver_unknown",
                driver=int(driver),
                expected=list(_DRIVERS),
                effect="the configured cgroupDriver is used",
            )
        return known


def _problem(condition: v1.RuntimeCondition | None, type_: str) -> str:
    if condition is None:
        return f"container runtime status has no condition {type_}"
    if condition.status:
        return ""
    return f"{type_}=false reason:{condition.reason} message:{condition.message}"
