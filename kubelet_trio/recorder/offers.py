"""What plugins and drivers offer now, as last noted: only what has changed is written.

A plugin may list thousands of devices again because of one. The thread that writes compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubelet_trio.recorder.bodies import encode_json
from kubelet_trio.recorder.format import Entry, Kind


@dataclass(frozen=True, slots=True)
class Offer:
    """The content of a PLUGIN, which must not change later.

    Attributes:
        told: fields that replace those of before.
        listed: its devices by name; None: nothing is said of them.
        is_whole: whether devices that are not listed are gone.
        plain: returns what is told of a device.
    """

    told: Mapping[str, Any] = field(default_factory=dict)
    listed: Mapping[str, Any] | None = None
    is_whole: bool = True
    plain: Callable[[Any], Any] = lambda device: device


@dataclass(slots=True, eq=False)
class _Offered:
    told: dict[str, Any] = field(default_factory=dict)
    listed: dict[str, Any] = field(default_factory=dict)
    plain: Callable[[Any], Any] = lambda device: device

    def body(self) -> bytes:
        devices = {name: self.plain(each) for name, each in self.listed.items()}
        return encode_json({**self.told, "devices": devices})


class Offers:
    """The offers by key."""

    def __init__(self) -> None:
        self._offered: dict[str, _Offered] = {}

    def entries(self, at: float, key: str, offer: Offer | None) -> Iterator[Entry]:
        """Yield the entry of an offer, none if it brings nothing new; None: it is gone."""
        if offer is None:
            if self._offered.pop(key, None) is not None:
                yield Entry(at, Kind.PLUGIN, key)
            return
        is_new = key not in self._offered
        known = self._offered.setdefault(key, _Offered())
        body = {n: v for n, v in offer.told.items() if known.told.get(n, known) != v}
        known.told |= body
        if offer.listed is not None:
            known.plain = offer.plain
            body |= _changes(known.listed, offer)
        if body or is_new:
            yield Entry(at, Kind.PLUGIN, key, encode_json(body))

    def state(self) -> Iterator[tuple[Kind, str, bytes]]:
        """Yield kinds, keys and bodies of what there is now."""
        for key, known in self._offered.items():
            yield Kind.PLUGIN, key, known.body()


def _changes(known: dict[str, Any], offer: Offer) -> dict[str, Any]:
    """Take a list over; return what of it is new."""
    listed = offer.listed or {}
    fresh = {name: each for name, each in listed.items() if known.get(name) != each}
    gone = [name for name in known if name not in listed] if offer.is_whole else []
    known.update(fresh)
    for name in gone:
        del known[name]
    found: dict[str, Any] = {}
    # An empty list is news: the plugin has answered.
    if fresh or (offer.is_whole and not listed):
        found["devices"] = {name: offer.plain(each) for name, each in fresh.items()}
    if gone:
        found["gone"] = gone
    return found
