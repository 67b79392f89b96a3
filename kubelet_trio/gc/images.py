"""Decide which images to remove. Pure.

Source: pkg/kubelet/images/image_gc_manager.go (1.36). In addition an image stays while the spec of
an active pod or the administrator's keep list names it, and the sandbox image always stays. Times
are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from kubelet_trio.model import full_name

NEVER = float("-inf")
NEEDED = "unused, and space is needed"


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """When images are removed."""

    high_threshold: int = 85  # percent of the file system at which removal begins
    low_threshold: int = 80  # percent at which it ends
    min_age: float = 120.0  # seconds on the node before an image may be removed
    max_age: float = 0.0  # seconds without use after which an image is removed anyway; 0: never
    keep: tuple[str, ...] = ()  # patterns of names that are never removed

    @property
    def is_off(self) -> bool:
        """Whether no image is ever removed."""
        # StartGarbageCollection does not start the collector then.
        return self.high_threshold == 100 and self.max_age == 0


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image on the node."""

    id: str
    names: tuple[str, ...] = ()  # tags and digests
    size: int = 0  # bytes
    pinned: bool = False
    first_seen: float = NEVER
    last_used: float = NEVER

    @property
    def shown(self) -> str:
        """The name for messages."""
        return self.names[0] if self.names else self.id


@dataclass(frozen=True, slots=True)
class ImageVerdict:
    """The decision about one image, with the reason for the log."""

    image: ImageRecord
    remove: bool
    why: str


@dataclass(slots=True)
class ImageBook:
    """When each image was first seen and last used."""

    began: float  # time of the collector's start; earlier uses are unknown
    _records: dict[str, ImageRecord] = field(default_factory=dict)
    _is_first: bool = True

    def note(
        self, images: Iterable[ImageRecord], in_use: Collection[str], now: float
    ) -> list[ImageRecord]:
        """Record the images on the node now; return them with their times."""
        noted: dict[str, ImageRecord] = {}
        for image in images:
            before = self._records.get(image.id)
            if before is None:
                # One from before the agent may have come just then: its age counts from the start,
                # as upstream (Start), also if nobody looked before the disk was full.
                before = replace(image, first_seen=self.began if self._is_first else now)
            used = now if image.id in in_use else before.last_used
            noted[image.id] = replace(image, first_seen=before.first_seen, last_used=used)
        self._records, self._is_first = noted, False
        return list(noted.values())


def bytes_to_free(capacity: int, available: int, policy: ImagePolicy) -> int:
    """Return the bytes to free by removing images; 0 below the high threshold."""
    # Some file systems report more available than they have; upstream corrects it, too.
    available = min(available, capacity)
    if used_percent(capacity, available) < policy.high_threshold:
        return 0
    return max(0, capacity * (100 - policy.low_threshold) // 100 - available)


def used_percent(capacity: int, available: int) -> int:
    """Return the used percentage of a file system, rounded up as upstream."""
    return 100 - min(available, capacity) * 100 // capacity


def removal_order(
    images: Iterable[ImageRecord],
    policy: ImagePolicy,
    now: float,
    *,
    in_use: Mapping[str, str],
    sandbox_image: str = "",
    began: float = 0.0,
) -> list[ImageVerdict]:
    """Decide which images may be removed, in the order of removal: least recently used first.

    Those that only `NEEDED` justifies are removed until `enough` is free.

    Args:
        images: all images.
        policy: the rules.
        now: seconds, on the clock of the images' times.
        in_use: the user of each image in use, by image id.
        sandbox_image: the name of the sandbox image.
        began: time since which uses are known.
    """
    verdicts: list[ImageVerdict] = []
    for image in sorted(images, key=lambda i: (i.last_used, i.first_seen, i.id)):
        kept = _why_kept(image, policy, in_use, sandbox_image)
        remove, why = (False, kept) if kept else _unused(image, policy, now, began)
        verdicts.append(ImageVerdict(image, remove, why))
    return verdicts


def enough(verdict: ImageVerdict, freed: int, to_free: int | None) -> bool:
    """Whether an image stays because enough is free; `to_free` None: remove all unused images."""
    return verdict.why is NEEDED and to_free is not None and freed >= to_free


def _why_kept(
    image: ImageRecord, policy: ImagePolicy, in_use: Mapping[str, str], sandbox_image: str
) -> str:
    """Return why an image stays whatever its age; "" if it may be removed."""
    if image.id in in_use:
        return f"used by {in_use[image.id]}"
    if image.pinned:
        return "pinned by the runtime"
    # Some runtimes do not pin it, and without it no sandbox starts.
    if sandbox_image and names_image(sandbox_image, image):
        return "the sandbox image"
    for pattern in policy.keep:
        names = (*image.names, image.id)
        if any(fnmatchcase(n, pattern) or n == full_name(pattern) for n in names):
            return f"on the keep list: {pattern}"
    return ""


def _unused(image: ImageRecord, policy: ImagePolicy, now: float, began: float) -> tuple[bool, str]:
    # KEP-4210: a use before the collector began is unknown, so the age counts from there.
    unused_for = now - max(image.last_used, image.first_seen, began)
    if 0 < policy.max_age < unused_for:
        return True, f"unused for {unused_for:.0f} s, longer than {policy.max_age:.0f} s"
    age = now - image.first_seen
    # It may have just been pulled for a container that does not exist yet (freeSpace).
    if age < policy.min_age:
        return False, f"on the node for {age:.0f} s, less than {policy.min_age:.0f} s"
    return True, NEEDED


def names_image(reference: str, image: ImageRecord) -> bool:
    """Whether a reference (a name, a digest or an id) refers to the image."""
    full = full_name(reference)
    return reference == image.id or reference in image.names or full in image.names


def used_images(images: Iterable[ImageRecord], users: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the user of each image in use, by image id; `users` are (reference, user)."""
    images = list(images)
    by_name = {name: image.id for image in images for name in (*image.names, image.id)}
    used: dict[str, str] = {}
    for reference, user in users:
        found = by_name.get(reference) or by_name.get(full_name(reference) if reference else "")
        if found is not None:
            used.setdefault(found, user)
    return used
