"""Evaluates the selectors of requests and classes on devices.

Most classes select by their driver's name alone. That one form is compared here; any other needs
a CEL library, which is imported with the first of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kubelet_trio.managers.claims.allocation.devices import AllocationError, DeviceId, Offered
from kubelet_trio.managers.claims.allocation.requests import Selector

if TYPE_CHECKING:
    from kubelet_trio.managers.claims.allocation.cel import Program

EXTRA = "dra"  # the optional dependency with the CEL library
MAX_EXPRESSION = 10 * 1024  # characters: CELSelectorExpressionMaxLength
MAX_TOTAL_COST = 2_000_000  # steps of all evaluations of one allocation: some seconds
_MAX_PROGRAMS = 256

_DRIVER_ALONE = re.compile(r"""\s*device\.driver\s*==\s*(?:"([-a-z0-9.]+)"|'([-a-z0-9.]+)')\s*""")


class Selectors:
    """Compiled selectors, kept from one allocation to the next. Not thread-safe."""

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}
        self._inputs: dict[DeviceId, object] = {}
        self._left = MAX_TOTAL_COST

    def begin(self) -> None:
        """Begin another allocation: the devices may have changed."""
        self._inputs.clear()
        self._left = MAX_TOTAL_COST
        if len(self._programs) > _MAX_PROGRAMS:
            self._programs.clear()

    def matches(self, selector: Selector, device: Offered) -> bool:
        """Return whether a selector matches a device.

        Raises:
            AllocationError: it does not compile, fails on this device, or needs a library that is
                not installed.
        """
        driver = _DRIVER_ALONE.fullmatch(selector.expression)
        if driver is not None:
            return device.id.driver == (driver[1] or driver[2])
        program = self._program(selector)
        from kubelet_trio.managers.claims.allocation import cel  # loaded by `_program`

        try:
            if device.id not in self._inputs:
                self._inputs[device.id] = cel.device_input(device)
            matched, cost = program.evaluate(self._inputs[device.id])
        except cel.CelError as exc:
            raise AllocationError(
                f"{selector.owner} on device {device.id}: CEL runtime error: {exc}"
            ) from exc
        self._left -= cost
        if self._left < 0:
            raise AllocationError(
                f"{selector.owner}: the selectors take too long for all of the devices"
            )
        return matched

    def _program(self, selector: Selector) -> Program:
        found = self._programs.get(selector.expression)
        if found is not None:
            return found
        if len(selector.expression) > MAX_EXPRESSION:
            raise AllocationError(f"{selector.owner}: longer than {MAX_EXPRESSION} characters")
        try:
            from kubelet_trio.managers.claims.allocation import cel  # on demand: 20 MB
        except ImportError as exc:
            raise AllocationError(
                f'{selector.owner}: a CEL selector other than device.driver == "…" needs an '
                f"optional package: pip install 'kubelet-trio[{EXTRA}]' ({exc})"
            ) from exc
        try:
            program = self._programs[selector.expression] = cel.compile_selector(
                selector.expression
            )
        except cel.CelError as exc:
            raise AllocationError(f"{selector.owner}: CEL compile error: {exc}") from exc
        return program
