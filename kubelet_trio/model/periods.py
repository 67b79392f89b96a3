"""When periodic work is due: tasks that share a moment share a wake-up of the process.

Each of a dozen tasks that sleep for their own 5, 10 or 60 s wakes an idle agent at a moment of its
own. Whole multiples of these periods coincide by themselves.
"""

from __future__ import annotations

import trio


class Phase:
    """Phases, in seconds, of periodic work in threads.

    A thread ends after 10 s without work, and pieces of work that begin at the same moment take a
    thread each. So each has a moment of its own, and one or two threads do for all.
    """

    # Every 10 s. The node's signals, which have none, are read in between.
    SCAN = 5.0
    # Every 20 s by default.
    MANIFESTS = 10.0
    # Once a minute.
    CONTAINERS = 5.0
    POD_DIRECTORIES = 15.0
    VOLUMES = 25.0
    POD_CGROUPS = 35.0
    NODE_CGROUPS = 45.0


def next_due(period: float, phase: float = 0.0, *, after: float | None = None) -> float:
    """Return the Trio time at which work is due that is done every `period` seconds.

    It is the first moment `phase` s after a whole multiple of the period that comes after `after`
    (Trio time; None: now), so within a period of it. Work that some event has caused in between is
    therefore done again in less than a period.
    """
    begin = trio.current_time() if after is None else after
    due = ((begin - phase) // period + 1) * period + phase
    # The quotient of a time that was such a moment can be rounded down.
    return due if due > begin else due + period
