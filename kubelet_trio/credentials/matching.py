"""Matches images with credentials by names and globs, as the Go kubelet's keyring. Pure.

An image is looked up by its repository, `<registry>[:port]/<path>`, without tag and digest. The
location of a credential is such a name or a prefix of one; its host may contain globs, each for one
part (`*.registry.example`). Source: pkg/credentialprovider/keyring.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from urllib.parse import SplitResult, urlsplit

DOCKER_HUB = "docker.io"
_NO_ESCAPE = re.compile("%(?![0-9a-fA-F]{2})")
_DOCKER_HUB_KEYS = "index.docker.io"  # the location of its credentials in docker configs


@dataclass(frozen=True, slots=True)
class SecretSource:
    """The pull secret that a login is from."""

    uid: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class AccountSource:
    """The service account whose token a credential provider exchanged for a login."""

    uid: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Login:
    """A user name and a password for a registry.

    `source` is None for the node's own logins, which every pod may use.
    """

    username: str = ""
    password: str = ""
    email: str = ""  # not used to log in, but part of the hash in a pull record
    source: SecretSource | AccountSource | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"Login({self.username!r}, ...)"  # no secrets in logs


Logins = Mapping[str, Login]  # by location, as in a docker config


def untagged(image: str) -> str:
    """Return an image's name as it is written, without tag and digest: `busybox:1` is `busybox`."""
    head, slash, last = image.partition("@")[0].rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def repository(image: str) -> str:
    """Return an image's full repository: `busybox:1` is `docker.io/library/busybox`."""
    name = untagged(image)
    first, slash, rest = name.partition("/")
    # As reference.ParseNormalizedNamed: without a dot, a colon or an upper-case letter, the first
    # part is no registry unless it is `localhost`.
    if slash and (any(c in first for c in ".:") or first == "localhost" or first != first.lower()):
        if first == _DOCKER_HUB_KEYS:
            first = DOCKER_HUB
        if first == DOCKER_HUB and "/" not in rest:
            rest = f"library/{rest}"
        return f"{first}/{rest}"
    return f"{DOCKER_HUB}/{name if slash else f'library/{name}'}"


def registry(image_repository: str) -> str:
    """Return the host of a repository, with the port if it has one."""
    return image_repository.partition("/")[0]


def matches(pattern: str, image_repository: str) -> bool:
    """Return whether a location, with globs in its host, matches a repository.

    The ports are equal or both missing, the hosts have the same number of parts, and the
    location's path is a prefix of the repository's.
    """
    try:
        glob, target = _split(pattern), _split(image_repository)
        ports = glob.port, target.port
    except ValueError:
        return False
    if ports[0] != ports[1] or not target.path.startswith(glob.path):
        return False
    globs, parts = _host_parts(glob), _host_parts(target)
    # Part by part: a glob must not match across a dot.
    return len(globs) == len(parts) and all(map(fnmatchcase, parts, globs))


def is_location(pattern: str) -> bool:
    """Return whether a pattern is one that a repository may match."""
    # As ParseSchemelessURL: a URL without its scheme.
    host, _, path = pattern.partition("/")
    if not host or not host.isprintable() or {" ", "%"} & set(host) or _NO_ESCAPE.search(path):
        return False
    try:
        _ = _split(pattern).port  # raises for one that is no number
    except ValueError:
        return False
    return True


def lookup(keyrings: Sequence[Sequence[Logins]], image_repository: str) -> list[Login]:
    """Return the logins to try in turn: for each keyring, the longest matching path first.

    A keyring is of one or several docker configs, such as those of all pull secrets of a pod.
    """
    found: list[Login] = []
    for configs in keyrings:
        found += _lookup(configs, image_repository)
    # Without duplicates: each login is a request to the registry.
    return list(dict.fromkeys(found))


def _lookup(configs: Sequence[Logins], image_repository: str) -> list[Login]:
    by_key: dict[str, list[Login]] = {}
    for location, login in (item for logins in configs for item in logins.items()):
        if (key := _key(location)) is not None:
            by_key.setdefault(key, []).append(login)
    found = [
        login
        for key in sorted(by_key, reverse=True)  # a longer path sorts after its prefix
        if matches(key, image_repository)
        for login in by_key[key]
    ]
    # Images say docker.io, Docker's logins index.docker.io.
    if not found and registry(image_repository) == DOCKER_HUB:
        return by_key.get(_DOCKER_HUB_KEYS, [])
    return found


def _key(location: str) -> str | None:
    """Return a location without scheme and API version; None if it is malformed."""
    try:
        url = _split(location)
    except ValueError:
        return None
    path = url.path
    # Docker's own key is https://index.docker.io/v1/.
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return url.netloc if path in ("", "/") else f"{url.netloc}{path}"


def _split(location: str) -> SplitResult:
    # Without a scheme, urlsplit takes the host for a path.
    has_scheme = location.startswith(("http://", "https://"))
    return urlsplit(location if has_scheme else f"https://{location}")


def _host_parts(url: SplitResult) -> list[str]:
    host = url.netloc.rpartition("@")[2]
    if url.port is not None:
        host = host.rpartition(":")[0]
    return host.split(".")
