"""The image store of a fake runtime: what is on the node, and how pulls go."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import trio

from kubelet_trio.cri import ImagePullError, v1


def image_id(name: str) -> str:
    """Return the id that an image of this name has in every fake runtime."""
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


@dataclass(eq=False, slots=True)
class FakeImages:
    """Images by name. A name with the word `missing` cannot be pulled, nor one in `broken`.

    `pull_takes` is s per pull unless `pull_times` says otherwise for a name.
    """

    present: set[str] = field(default_factory=set)
    broken: dict[str, ImagePullError] = field(default_factory=dict)
    pull_takes: float = 0.0
    pull_times: dict[str, float] = field(default_factory=dict)
    users: dict[str, tuple[int | None, str]] = field(default_factory=dict)  # uid, or name
    pulls_in_flight: int = 0
    max_pulls_in_flight: int = 0
    pulled: list[str] = field(default_factory=list)  # pulls that succeeded, in order
    logins: dict[str, str] = field(default_factory=dict)  # user that a name is given to
    tried: list[tuple[str, str]] = field(default_factory=list)  # name and user of each pull
    sizes: dict[str, int] = field(default_factory=dict)  # bytes; 1 MB where not told
    pinned: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)  # those that the runtime refuses to remove
    removed: list[str] = field(default_factory=list)  # in order

    def find(self, reference: str) -> str | None:
        """Return the name of a present image, asked for by name or by id."""
        if reference in self.present:
            return reference
        return next((name for name in sorted(self.present) if image_id(name) == reference), None)

    def image(self, name: str) -> v1.Image:
        """Describe a present image."""
        uid, username = self.users.get(name, (None, ""))
        return v1.Image(
            id=image_id(name),
            repo_tags=[name],
            repo_digests=[f"{name.split(':')[0]}@{image_id(name)}"],
            size=self.sizes.get(name, 1_000_000),
            pinned=name in self.pinned,
            uid=None if uid is None else v1.Int64Value(value=uid),
            username=username,
            spec=v1.ImageSpec(image=name),
        )

    async def pull(self, name: str, auth: v1.AuthConfig | None = None) -> str:
        """Fetch an image; return its id. Raises `ImagePullError`."""
        user = auth.username if auth is not None else ""
        self.tried.append((name, user))
        self.pulls_in_flight += 1
        self.max_pulls_in_flight = max(self.max_pulls_in_flight, self.pulls_in_flight)
        try:
            await trio.sleep(self.pull_times.get(name, self.pull_takes))
        finally:
            self.pulls_in_flight -= 1
        if name in self.broken:
            raise self.broken[name]
        if user != self.logins.get(name, user):
            raise ImagePullError("PullImage", f'failed to pull "{name}": 401 Unauthorized')
        if "missing" in name:
            raise ImagePullError(
                "PullImage", f'failed to pull and unpack image "{name}": not found'
            )
        self.present.add(name)
        self.pulled.append(name)
        return image_id(name)
