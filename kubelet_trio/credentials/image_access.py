"""The keeper of the records of pulls: all of them in memory, read once, written through.

The image puller asks it whether a pod may use an image that is there, and tells it of every
pull. A pull is written down before it begins: an image that comes of one which nobody saw the
end of is known to have been pulled, with nobody knows what, so that everyone must show a login.
Collecting images takes the records of those that are gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

import trio

from kubelet_trio.credentials.matching import Login, repository
from kubelet_trio.credentials.pull_files import Loaded, PullFiles
from kubelet_trio.credentials.pulled import (
    Access,
    PullCredentials,
    PullVerification,
    access,
    accounts_of,
    credentials_of,
    file_name,
    match,
    merged,
    secrets_of,
    updated_at,
)
from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.model import Offload, WallClock, get_logger

log = get_logger()


class ImageLister(Protocol):
    """The part of the runtime that is asked."""

    async def list_images(self) -> list[v1.Image]: ...


class ImageAccess:
    """See the module. One lock keeps its files in the order of what it knows."""

    def __init__(
        self,
        root_dir: Path,
        runtime: ImageLister,
        offload: Offload,
        clock: WallClock,
        verification: PullVerification,
    ) -> None:
        self._files = PullFiles(root_dir)
        self._runtime = runtime
        self._offload = offload
        self._clock = clock
        self._verification = verification
        self._loaded: Loaded | None = None
        self._pulling: dict[str, int] = {}  # pulls under way by image; 0: of an earlier life
        self._lost: set[str] = set()  # images of pulls in an earlier life, not looked for yet
        self._turn = trio.Lock()

    async def must_pull(
        self, image: str, ref: str, logins: Callable[[], Awaitable[Sequence[Login]]]
    ) -> bool:
        """Return whether a pod may use an image on the node only if it can pull it.

        Args:
            image: as the pod names it.
            ref: as the runtime calls it.
            logins: gives the pod's; asked for only if they matter, its errors pass.
        """
        if self._verification.is_off:
            return False
        try:
            known = await self._ready()
        except OSError as exc:
            log.error("credentials.records_unreadable", error=str(exc))
            return True
        record = known.records.get(ref)
        if record is None and (
            file_name(ref) in known.unreadable or file_name(image) in known.unreadable_intents
        ):
            return True  # somebody pulled it, with nobody knows what
        pulled_here = record is not None or image in self._pulling
        found = access(self._verification, image, record, pulled_here=pulled_here)
        if found is not Access.OPEN or record is None:
            return found is not Access.GIVEN
        own = await logins()
        known_here = record.credential_mapping[repository(image)]
        is_known, news = match(known_here, secrets_of(own), accounts_of(own))
        if news is not None:
            async with self._turn:
                await self._note(image, ref, news)
        return not is_known

    async def begin(self, image: str) -> None:
        """Write down that an image is about to be pulled. Raises OSError."""
        await self._ready()
        async with self._turn:
            if image not in self._pulling:
                self._pulling[image] = 0
                try:
                    await self._offload(self._files.write_intent, image)
                except OSError:
                    del self._pulling[image]
                    raise
            self._pulling[image] += 1

    async def pulled(self, image: str, ref: str, login: Login | None) -> None:
        """Note with what an image was pulled; it stays a mere intent if that cannot be written."""
        async with self._turn:
            if await self._note(image, ref, credentials_of(login)):
                await self._end(image)

    async def failed(self, image: str) -> None:
        """Take back what `begin` wrote."""
        async with self._turn:
            await self._end(image)

    async def prune(self, present: Collection[str], before: float) -> None:
        """Remove the records of images that are not `present` (ids, or names by digest).

        What was written since `before` (Unix seconds, taken before they were listed) stays.
        """
        try:
            known = await self._ready()
        except OSError as exc:
            log.error("credentials.records_unreadable", error=str(exc))
            return
        names = {file_name(ref) for ref in present}
        async with self._turn:
            gone = [
                ref
                for ref, record in known.records.items()
                if ref not in present and updated_at(record) < int(before)
            ]
            unreadable = known.unreadable - names
            if not gone and not unreadable:
                return
            for ref in gone:
                del known.records[ref]
            known.unreadable.difference_update(unreadable)
            try:
                await self._offload(self._files.remove, gone, unreadable)
            except OSError as exc:
                log.error("credentials.records_not_removed", error=str(exc))

    async def _note(self, image: str, ref: str, credentials: PullCredentials | None) -> bool:
        """Add to a record, in memory and on disk; return whether that worked."""
        records = (await self._load()).records
        before = records.get(ref)
        after = merged(before, ref, image, credentials, self._clock.time())
        if after is before:
            return True
        records[ref] = after
        try:
            await self._offload(self._files.write, after)
        except OSError as exc:
            log.error("credentials.record_not_written", image=image, error=str(exc))
            if before is None:
                del records[ref]
            else:
                records[ref] = before
            return False
        return True

    async def _end(self, image: str) -> None:
        self._pulling[image] = self._pulling.get(image, 0) - 1
        if self._pulling[image] > 0:
            return
        try:
            await self._offload(self._files.remove_intent, image)
        except OSError as exc:
            log.error("credentials.intent_not_removed", image=image, error=str(exc))
            self._pulling[image] = 0
        else:
            del self._pulling[image]

    async def _ready(self) -> Loaded:
        if self._loaded is None or self._lost:
            async with self._turn:
                await self._load()
                await self._find_lost()
        assert self._loaded is not None
        return self._loaded

    async def _load(self) -> Loaded:
        if self._loaded is None:
            self._loaded = await self._offload(self._files.load)
            self._lost = set(self._loaded.intents)
            self._pulling = dict.fromkeys(self._lost, 0)
        return self._loaded

    async def _find_lost(self) -> None:
        """Turn the pulls of an earlier life that brought an image into records of it."""
        if not self._lost:
            return
        try:
            images = await self._runtime.list_images()
        except RuntimeCallError:
            return  # asked again the next time
        wanted = {_full_name(image): image for image in self._lost}
        for found in images:
            for name in (*found.repo_tags, *found.repo_digests):
                image = wanted.get(_full_name(name), "")
                if self._pulling.get(image) == 0 and await self._note(image, found.id, None):
                    await self._end(image)
        self._lost = set()


def _full_name(reference: str) -> str:
    """Return a reference with its registry, and its tag or digest."""
    name, at, digest = reference.partition("@")
    if at:
        return f"{repository(name)}@{digest}"
    last = name.rpartition("/")[2]
    return f"{repository(name)}:{last.partition(':')[2] or 'latest'}"
