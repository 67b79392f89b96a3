"""What many things cost, counted: calls of the agent's functions, by function, for each of them.

Linear work makes as many calls for each of 45 pods as for each of 15. Where each looks at all
others, a function is called 30 times more often for each.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import kubelet_trio

_OWN = kubelet_trio.__path__[0] + "/"
_LEFT_OUT = _OWN + "testing/"
# More calls for each: what waits in a queue of limited length takes a few.
SLACK = 10


class Calls:
    """Counts the calls of functions of the agent, by module and name."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count during a block, in this thread."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(_OWN) and not code.co_filename.startswith(_LEFT_OUT):
                self.made[f"{code.co_filename.removeprefix(_OWN)}:{code.co_qualname}"] += 1


def check_growth(few: Mapping[str, int], some: int, many: Mapping[str, int], more: int) -> None:
    """Fail where one of `more` things takes more calls than one of `some`, of all or of a function.

    `few` and `many` are the calls that were counted.
    """
    each = sum(few.values()) / some, sum(many.values()) / more
    assert each[1] <= 1.25 * each[0], each
    grown = {
        name: (few.get(name, 0) / some, count / more)
        for name, count in many.items()
        if count / more > 1.25 * few.get(name, 0) / some + SLACK
    }
    assert not grown, grown
