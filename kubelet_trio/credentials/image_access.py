"""The records of image pulls: read once, kept in memory, written through.

The image puller asks here whether a pod may use an image on the node, and reports every pull. An
intent is written before a pull begins. If the agent dies during the pull, the intent shows that the
image was pulled with unknown credentials, so every pod must prove access to it. Image garbage
collection removes the records of deleted images.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

import trio

from kubelet_trio.credentials.matching import Login, repository, untagged
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
from kubelet_trio.model import Meter, Offload, WallClock, get_logger

log = get_logger()

# Results of a check (pkg/kubelet/images/pullmanager/metrics.go).
_EXEMPT = "credentialPolicyAllowed"
_PROVEN = "credentialRecordFound"
_MUST_PROVE = "mustAuthenticate"


class ImageLister(Protocol):
    """The part of the runtime that this module needs."""

    async def list_images(self) -> list[v1.Image]: ...


class ImageAccess:
    """Decides whether pods may use images, and keeps the records."""

    def __init__(
        self,
        root_dir: Path,
        runtime: ImageLister,
        offload: Offload,
        clock: WallClock,
        verification: PullVerification,
        meter: Meter | None = None,
    ) -> None:
        self._files = PullFiles(root_dir)
        self._runtime = runtime
        self._offload = offload
        self._clock = clock
        self._verification = verification
        self._meter = meter or Meter()
        self._loaded: Loaded | None = None
        # Pulls in flight by image; 0: a pull that an earlier run of the agent left unfinished.
        self._pulling: dict[str, int] = {}
        self._unfinished: set[str] = set()  # images of such pulls, not looked for yet
        self._lock = trio.Lock()  # keeps the writes to files in the order of those to memory

    async def must_pull(
        self, image: str, ref: str, logins: Callable[[], Awaitable[Sequence[Login]]]
    ) -> bool:
        """Return whether a pod must pull an image that is on the node, to prove its access.

        Args:
            image: as the pod names it.
            ref: as the runtime names it.
            logins: returns the pod's logins. Called only if they matter; its errors are raised.
        """
        result = "error"
        try:
            # NeverVerify is the same whatever the records say, so they are not read.
            is_off = self._verification.is_off
            result = _EXEMPT if is_off else await self._check(image, ref, logins)
        # Fail closed: without records, every pod must prove its access.
        except OSError as exc:
            log.error("credentials.records_unreadable", error=str(exc))
        finally:
            self._meter.count("kubelet_imagemanager_image_mustpull_checks_total", (result,))
        return result in (_MUST_PROVE, "error")

    async def _check(
        self, image: str, ref: str, logins: Callable[[], Awaitable[Sequence[Login]]]
    ) -> str:
        """Return the result of a check, in the words of the Go kubelet's metric. Raises OSError."""
        known = await self._ready()
        record = known.records.get(ref)
        if record is None and (
            file_name(ref) in known.unreadable or file_name(image) in known.unreadable_intents
        ):
            return _MUST_PROVE  # a kubelet pulled it, with unknown credentials
        pulled_here = record is not None or image in self._pulling
        found = access(self._verification, image, record, pulled_here=pulled_here)
        if found is Access.GRANTED:
            is_exempt = not self._verification.is_for(image, pulled_here=pulled_here)
            return _EXEMPT if is_exempt else _PROVEN
        if found is Access.UNKNOWN or record is None:
            return _MUST_PROVE
        own = await logins()
        known_here = record.credential_mapping[untagged(image)]
        is_known, addition = match(known_here, secrets_of(own), accounts_of(own))
        if addition is not None:
            async with self._lock:
                await self._note(image, ref, addition)
        return _PROVEN if is_known else _MUST_PROVE

    async def begin(self, image: str) -> None:
        """Record that a pull begins. Raises OSError; the pull must then not begin."""
        await self._ready()
        async with self._lock:
            if image not in self._pulling:
                # Before the write: `must_pull` must know of the pull from now on.
                self._pulling[image] = 0
                try:
                    await self._offload(self._files.write_intent, image)
                except OSError:
                    del self._pulling[image]
                    raise
            self._pulling[image] += 1
            self._count_files()

    async def pulled(self, image: str, ref: str, login: Login | None) -> None:
        """Record the login of a successful pull; if that fails, the intent stays."""
        async with self._lock:
            if await self._note(image, ref, credentials_of(login)):
                await self._end(image)

    async def failed(self, image: str) -> None:
        """Remove the intent of a failed pull."""
        async with self._lock:
            await self._end(image)

    async def prune(self, present: Collection[str], before: float) -> None:
        """Remove the records of images that are not `present` (ids, or names by digest).

        Records written since `before` stay: the Unix time before the images were listed.
        """
        try:
            known = await self._ready()
        except OSError as exc:
            log.error("credentials.records_unreadable", error=str(exc))
            return
        async with self._lock:
            # Records have whole seconds: one that was written in this second must stay.
            gone = [
                ref
                for ref, record in known.records.items()
                if ref not in present and updated_at(record) < int(before)
            ]
            unreadable = set(known.unreadable)
            if unreadable:  # a digest each, and there may be thousands of images
                unreadable -= {file_name(ref) for ref in present}
            if not gone and not unreadable:
                return
            for ref in gone:
                del known.records[ref]
            known.unreadable.difference_update(unreadable)
            self._count_files()
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
        # In memory first: a pod that starts meanwhile must see it. Taken back if the write fails.
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
        self._count_files()
        return True

    def _count_files(self) -> None:
        """Set the gauges of the records and intents on disk."""
        records = len(self._loaded.records) if self._loaded is not None else 0
        self._meter.set("kubelet_imagemanager_ondisk_pulledrecords", records)
        self._meter.set("kubelet_imagemanager_ondisk_pullintents", len(self._pulling))

    async def _end(self, image: str) -> None:
        self._pulling[image] = self._pulling.get(image, 0) - 1
        if self._pulling[image] > 0:
            return
        try:
            await self._offload(self._files.remove_intent, image)
        except OSError as exc:
            log.error("credentials.intent_not_removed", image=image, error=str(exc))
            # The image still counts as pulled here, as it does after a restart.
            self._pulling[image] = 0
        else:
            del self._pulling[image]
            self._count_files()

    async def _ready(self) -> Loaded:
        if self._loaded is None or self._unfinished:
            async with self._lock:
                await self._load()
                await self._recover_unfinished()
        assert self._loaded is not None
        return self._loaded

    async def _load(self) -> Loaded:
        if self._loaded is None:
            self._loaded = await self._offload(self._files.load)
            self._unfinished = set(self._loaded.intents)
            self._pulling = dict.fromkeys(self._unfinished, 0)
            self._count_files()
        return self._loaded

    async def _recover_unfinished(self) -> None:
        """Turn the intents of an earlier run whose image exists into records."""
        if not self._unfinished:
            return
        try:
            images = await self._runtime.list_images()
        except RuntimeCallError:
            return  # the next call tries again
        wanted = {_full_name(image): image for image in self._unfinished}
        for found in images:
            for name in (*found.repo_tags, *found.repo_digests):
                image = wanted.get(_full_name(name), "")
                if self._pulling.get(image) == 0 and await self._note(image, found.id, None):
                    await self._end(image)
        self._unfinished = set()


def _full_name(reference: str) -> str:
    """Return a reference with its registry, and its tag or digest."""
    name, at, digest = reference.partition("@")
    if at:
        return f"{repository(name)}@{digest}"
    last = name.rpartition("/")[2]
    return f"{repository(name)}:{last.partition(':')[2] or 'latest'}"
