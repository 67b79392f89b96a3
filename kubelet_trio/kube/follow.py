"""Follows a kind of object at the API server: list, then watch, then watch again.

What there is now is told as a whole at every change, so whoever listens needs no history.
A connection that says nothing for too long, not even a bookmark, counts as broken.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

import structlog
import trio

from kubelet_trio.kube.api import (
    Bookmark,
    GoneError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    WatchEvent,
    WatchEventKind,
)

log = structlog.get_logger()

T = TypeVar("T")

_PAGE = 500
_WATCH = (300.0, 600.0)  # seconds, of which each watch takes some
_SILENCE = 150.0  # a server sends a bookmark every minute
_RETRY_FIRST = 0.2
_RETRY_LAST = 10.0


async def follow(
    api: KubeApi,
    model: type[T],
    take: Callable[[Mapping[str, T]], None],
    *,
    field_selector: str = "",
) -> None:
    """Tell `take` of all objects by UID, at first and whenever one changes; until cancelled."""
    objects: dict[str, T] = {}
    version, delay, began = "", 0.0, 0.0
    while True:
        try:
            if not version:
                objects, version = await _list(api, model, field_selector)
                take(dict(objects))
            began = trio.current_time()
            version = await _watch(api, model, take, objects, version, field_selector)
            delay = 0.0
        except GoneError:
            version = ""
        except _BrokenError as exc:
            version = exc.version
            if trio.current_time() - began > _RETRY_LAST:
                delay = 0.0  # it was well for a while
            delay = min(max(delay * 2, _RETRY_FIRST), _RETRY_LAST)
        except (KubeError, KubeUnavailableError) as exc:
            delay = min(max(delay * 2, _RETRY_FIRST), _RETRY_LAST)
            log.warning("kube.follow_failed", kind=model.__name__, error=str(exc), retry_in=delay)
        await trio.sleep(delay * random.uniform(1.0, 1.5))


class _BrokenError(Exception):
    """A watch that ended by a broken connection; it goes on from `version`."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.version = version


async def _list(api: KubeApi, model: type[T], selector: str) -> tuple[dict[str, T], str]:
    objects: dict[str, T] = {}
    token = ""
    while True:
        page = await api.list(model, field_selector=selector, limit=_PAGE, continue_token=token)
        objects |= {_uid(item): item for item in page.items}
        token = page.continue_token
        if not token:
            return objects, page.resource_version


async def _watch(
    api: KubeApi,
    model: type[T],
    take: Callable[[Mapping[str, T]], None],
    objects: dict[str, T],
    version: str,
    selector: str,
) -> str:
    """Watch once, to its end; return the version that it got to."""
    seconds = int(random.uniform(*_WATCH))
    try:
        async with api.watch(
            model, field_selector=selector, resource_version=version, timeout=seconds
        ) as events:
            while True:
                event = await _next(events)
                if event is None:
                    return version
                if isinstance(event, Bookmark):
                    version = event.resource_version
                    continue
                version = _version(event.object)
                if event.kind is WatchEventKind.DELETED:
                    objects.pop(_uid(event.object), None)
                else:
                    objects[_uid(event.object)] = event.object
                take(dict(objects))
    except (KubeUnavailableError, trio.TooSlowError) as exc:
        log.info("kube.watch_broken", kind=model.__name__, error=str(exc) or "it says nothing")
        raise _BrokenError(version) from exc


async def _next(
    events: AsyncIterator[WatchEvent[T] | Bookmark],
) -> WatchEvent[T] | Bookmark | None:
    with trio.fail_after(_SILENCE):
        return await anext(events, None)


def _meta(obj: object) -> tuple[str, str]:
    meta = getattr(obj, "metadata", None)
    return (getattr(meta, "uid", None) or "", getattr(meta, "resourceVersion", None) or "")


def _uid(obj: object) -> str:
    return _meta(obj)[0]


def _version(obj: object) -> str:
    return _meta(obj)[1]
