"""What drivers say of their devices' health, and until when that counts. Pure.

Each instance of a driver has a feed of its own: during a rolling update the end of the old one
does not take back what the new one has said. (Upstream has one table per driver, and clears it.)

Nothing is kept beyond a restart. A driver that registers again lists its devices at once, and
upstream's file, `dra_health_state`, is outdated after 30 s as well.

Source: KEP-4680 and pkg/kubelet/cm/dra/healthinfo.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

HEALTHY, UNHEALTHY, UNKNOWN = "Healthy", "Unhealthy", "Unknown"
DEFAULT_TIMEOUT = 30.0  # s: DefaultHealthTimeout
MOST_DEVICES = 10_000  # of one instance; upstream has no limit
_MOST_MESSAGE = 1024  # bytes: ResourceHealthMessageMaxLength; the API server counts them
_NOTHING = (UNKNOWN, "")

Shown = tuple[str, str]  # status and message


class DeviceName(NamedTuple):
    """A device of one driver."""

    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a driver says of one device.

    Attributes:
        name: the device.
        status: `HEALTHY`, `UNHEALTHY` or `UNKNOWN`.
        message: details for people; "": none.
        timeout: seconds after which the report counts no longer.
    """

    name: DeviceName
    status: str
    message: str = ""
    timeout: float = DEFAULT_TIMEOUT


@dataclass(eq=False, slots=True)
class HealthFeed:
    """What one instance of a driver has said, each until a moment."""

    driver: str
    reports: dict[DeviceName, tuple[HealthReport, float]] = field(default_factory=dict)


class HealthBook:
    """The health of all drivers' devices; implements `DeviceHealths`.

    Each change returns the devices whose health it changes, with the new one. Moments are those of
    `trio.current_time`.
    """

    def __init__(self) -> None:
        self._feeds: dict[str, list[HealthFeed]] = {}  # of each driver, the newest at the end
        self._shown: dict[str, dict[DeviceName, Shown]] = {}  # without what is unknown

    def health(self, driver: str, pool: str, device: str) -> Shown:
        """Return a device's status and message."""
        return self._shown.get(driver, {}).get(DeviceName(pool, device), _NOTHING)

    def open(self, driver: str) -> HealthFeed:
        """Begin a feed, for an instance's stream."""
        feed = HealthFeed(driver)
        self._feeds.setdefault(driver, []).append(feed)
        return feed

    def take(
        self, feed: HealthFeed, reports: Iterable[HealthReport], now: float
    ) -> Mapping[DeviceName, Shown]:
        """Take a list of an instance. A device that it leaves out stays as it was until its time.

        Raises ValueError if there are too many devices.
        """
        listed = {report.name: (report, now + report.timeout) for report in reports}
        if len(listed) > MOST_DEVICES:
            raise ValueError(f"the driver lists more than {MOST_DEVICES} devices")
        # A driver with ever other names must not fill the memory.
        former = feed.reports if len(feed.reports) + len(listed) <= 2 * MOST_DEVICES else {}
        feed.reports = former | listed
        return self._update(feed.driver, now)

    def expire(self, feed: HealthFeed, now: float) -> Mapping[DeviceName, Shown]:
        """Forget what a feed's instance has not repeated in time."""
        return self._update(feed.driver, now)

    def close(self, feed: HealthFeed, now: float) -> Mapping[DeviceName, Shown]:
        """Forget all that a feed's instance has said: its stream has ended."""
        feeds = self._feeds.get(feed.driver, [])
        if feed in feeds:
            feeds.remove(feed)
        if not feeds:
            self._feeds.pop(feed.driver, None)
        return self._update(feed.driver, now)

    def _update(self, driver: str, now: float) -> Mapping[DeviceName, Shown]:
        before = self._shown.pop(driver, {})
        latest = dict(self._current(driver, now))  # the newest instance comes last
        known = {name: shown for name, shown in latest.items() if shown != _NOTHING}
        if known:
            self._shown[driver] = known
        return {
            name: known.get(name, _NOTHING)
            for name in before.keys() | known.keys()
            if before.get(name) != known.get(name)
        }

    def _current(self, driver: str, now: float) -> Iterator[tuple[DeviceName, Shown]]:
        for feed in self._feeds.get(driver, ()):
            feed.reports = {n: entry for n, entry in feed.reports.items() if entry[1] > now}
            for name, (report, _) in feed.reports.items():
                yield name, (report.status, report.message)


def next_expiry(feed: HealthFeed) -> float:
    """Return when the first report of a feed counts no longer; infinity if there is none."""
    return min((until for _, until in feed.reports.values()), default=float("inf"))


def bounded_message(text: str) -> str:
    """Return a driver's message as the API takes it."""
    data = text.encode()
    if len(data) <= _MOST_MESSAGE:
        return text
    return data[: _MOST_MESSAGE - 3].decode(errors="ignore") + "..."  # no half character
