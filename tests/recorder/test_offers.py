"""What plugins offer, as the tape writes it: what has changed, and all of it in a snapshot."""

from __future__ import annotations

import json
from typing import Any

from kubelet_trio.recorder import Entry, Kind
from kubelet_trio.recorder.offers import Offer, Offers

KEY = "device/example.com/gpu/1"


def bodies(found: Any) -> list[Any]:
    return [json.loads(each.body) if each.body else None for each in found]


def test_only_what_has_changed_is_written() -> None:
    offers = Offers()
    many = {f"d{n}": {"health": "Healthy"} for n in range(1000)}
    sick = {**many, "d7": {"health": "Unhealthy"}}
    less = {name: each for name, each in sick.items() if name != "d8"}
    assert bodies(offers.entries(1, KEY, Offer({"options": {}}))) == [{"options": {}}]
    (first,) = bodies(offers.entries(2, KEY, Offer(listed=many)))
    assert len(first["devices"]) == 1000
    assert bodies(offers.entries(3, KEY, Offer(listed=dict(many)))) == []
    assert bodies(offers.entries(4, KEY, Offer(listed=sick))) == [{"devices": {"d7": sick["d7"]}}]
    assert bodies(offers.entries(5, KEY, Offer(listed=less))) == [{"gone": ["d8"]}]
    ((kind, key, body),) = offers.state()
    assert (kind, key) == (Kind.PLUGIN, KEY)
    assert json.loads(body) == {"options": {}, "devices": less}


def test_one_that_lists_nothing_has_answered() -> None:
    offers = Offers()
    assert bodies(offers.entries(1, KEY, Offer(listed={}))) == [{"devices": {}}]


def test_one_that_is_gone_is_in_no_snapshot() -> None:
    offers = Offers()
    list(offers.entries(1, KEY, Offer({"connected": True})))
    assert list(offers.entries(2, KEY, None)) == [Entry(2, Kind.PLUGIN, KEY)]
    assert list(offers.entries(3, KEY, None)) == []
    assert list(offers.state()) == []


def test_news_of_one_device_leave_the_others() -> None:
    offers = Offers()
    for name in ("a", "b"):
        told = {name: {"health": "Healthy", "message": ""}}
        list(offers.entries(1, "driver/dra.example.com/0", Offer(listed=told, is_whole=False)))
    ((_, _, body),) = offers.state()
    assert sorted(json.loads(body)["devices"]) == ["a", "b"]
