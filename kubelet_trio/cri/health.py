"""Whether the runtime answers and says it is ready: the state every pod worker waits on.

Pods are not synced (`is_usable`) at once where nobody answers or the runtime says that it is not
ready, and after 30 s where Status is late or fails, as the Go kubelet waits in any case.

One task asks `Status` every few seconds; pod workers, the health endpoint and `kubelet-trio
status` read the value. A runtime that is down is a state here, never a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import trio
from trio_util import AsyncValue

from kubelet_trio.cri._errors import RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.cri._runtime import Runtime
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.model import get_logger

log = get_logger()

_PERIOD = 5.0
# While the runtime is away, ask often: a refused connection costs next to nothing.
_PERIOD_DOWN = 0.5
_STATUS_DEADLINE = 10.0
# For how long pods are still synced after the last good Status of a runtime that answers late or
# with errors. Source: maxWaitForContainerRuntime in kubelet.go.
_PATIENCE = 30.0
# How long Version's answer holds: a runtime may be upgraded between two of our looks.
_VERSION_HOLDS = 60.0


CgroupDriverName = Literal["cgroupfs", "systemd"]
# Since which version a runtime mounts images as volumes; None: it never does.
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
    """The runtime as last seen. `problem` and `network_problem` are "" where all is well."""

    problem: str = "container runtime status has not been read yet"
    network_problem: str = "container runtime network is not ready yet"
    name: str = "containerd"  # as Version gives it: the prefix of container ids
    version: str = ""
    cgroup_driver: CgroupDriverName | None = None  # as RuntimeConfig gives it, if it does
    recursive_read_only: frozenset[str] = frozenset()  # handlers ("": default) that can mount so
    user_namespaces: frozenset[str] = frozenset()  # handlers that can give a pod its own users
    handlers: frozenset[str] = frozenset()  # that runtime classes may name; "": the default
    supplemental_groups_policy: bool = False  # whether Strict is obeyed
    is_usable: bool = False  # whether pods may be synced; stays true for a while of `problem`

    @property
    def is_ready(self) -> bool:
        return not self.problem

    @property
    def no_image_volumes(self) -> str:
        """Why the runtime cannot mount an image as a volume; "" where it can.

        CRI has no word for it: it is told by name and version. One that cannot would take
        the mount for one of an empty path.
        """
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
    """Keeps `state` true. One task runs it; anybody may read."""

    def __init__(
        self, runtime: Runtime, on_change: Callable[[RuntimeState], None] = lambda _state: None
    ) -> None:
        self._runtime = runtime
        self._on_change = on_change
        self._introduce_at = -inf  # trio time at which it is asked again who it is
        self._driver_told = ""  # one that we do not know, told of once
        self._good_at = -inf  # trio time of the last good Status
        self.state: AsyncValue[RuntimeState] = AsyncValue(RuntimeState())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask until cancelled; ready after the first answer, or its absence."""
        await self._ask()
        task_status.started()
        while True:
            await trio.sleep(_PERIOD if self.state.value.is_ready else _PERIOD_DOWN)
            await self._ask()

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
                known = await self._introduce(before)
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
            self._good_at = trio.current_time()
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
        """Return the state of a runtime that is there, and too busy or too ill to tell its own.

        Other calls may well succeed: pods are synced on until it was silent for long.
        """
        is_usable = before.is_usable and trio.current_time() < self._good_at + _PATIENCE
        return replace(before, problem=problem, is_usable=is_usable)

    async def _introduce(self, before: RuntimeState) -> RuntimeState:
        """Ask who it is: every minute, and when it was away, for it may come back another."""
        now = trio.current_time()
        if now < self._introduce_at and before.is_ready:
            return before
        version = await self._runtime.version()
        driver = self._known_driver(await self._runtime.cgroup_driver())
        self._introduce_at = now + _VERSION_HOLDS
        return replace(
            before,
            name=version.runtime_name,
            version=version.runtime_version,
            cgroup_driver=driver,
        )

    def _known_driver(self, driver: v1.CgroupDriver | None) -> CgroupDriverName | None:
        """Return the driver, None for one that CRI does not name: the configured one holds."""
        if driver is None:
            return None
        known = _DRIVERS.get(driver.name or "")
        if known is None and self._driver_told != repr(driver):
            self._driver_told = repr(driver)
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
