"""The answer of `explain`: JSON as it stands, by `msgspec.json`. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WantedContainer:
    """A container of the manifest. `kind`: `init`, `sidecar`, `main` or `ephemeral`."""

    name: str
    kind: str
    image: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of the pod. `state`: `running`, `ended` or `removed`."""

    state: str
    source: str  # file, http, api or embedded
    manifest: str  # its file, "" if it comes from none
    generation: int | None
    restart_policy: str
    containers: tuple[WantedContainer, ...]


@dataclass(frozen=True, slots=True)
class ActualContainer:
    """A container as the runtime reports it. `state`: CRI's, or `missing`."""

    name: str
    state: str
    since: float | None  # of the state
    restarts: int
    ready: bool
    exit_code: int | None = None  # of the newest instance that has ended
    exit_reason: str = ""  # OOMKilled, Error, ...
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Actual:
    """What the node has of the pod.

    `activity` is the phase of its worker, `doing` the steps that it is in right now.
    """

    phase: str  # of the published status
    ready: bool
    activity: str
    since: float  # of the activity
    sandbox: str  # the newest one's ID, "" if there is none
    sandbox_ready: bool
    ips: tuple[str, ...]
    doing: tuple[str, ...]
    containers: tuple[ActualContainer, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that stands between what is wanted and what is.

    Attributes:
        kind: `ending`, `name`, `admission`, `runtime`, `step`, `volume`, `image`, `back-off`,
            `start`, `init`, `probe`, `gate`, `resize`, `record`, `manifest`, `worker` or `ended`.
        text: a sentence without times.
        container: the one that it holds up, "" for the whole pod.
        since: when it began; None: not known.
        until: when it ends by itself, or is tried again; None: when its cause is gone.
        blocks: whether it keeps the pod from what is wanted; else it is worth knowing.
    """

    kind: str
    text: str
    container: str = ""
    since: float | None = None
    until: float | None = None
    blocks: bool = True


@dataclass(frozen=True, slots=True)
class Next:
    """What happens next, at a time or, with None, as soon as something else has."""

    at: float | None
    text: str


@dataclass(frozen=True, slots=True)
class PodWhy:
    """Why a pod is as it is. `reasons` are the newest first, `next` the soonest first."""

    namespace: str
    name: str
    uid: str
    now: float  # of the answer
    summary: str  # one sentence: the reason that comes first
    wanted: Wanted
    actual: Actual
    reasons: tuple[Reason, ...]
    next: tuple[Next, ...]
