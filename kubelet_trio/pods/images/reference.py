"""Whether a text can name an image, and if not why: the words of the OCI distribution's parser.

Source: github.com/distribution/reference, ParseNormalizedNamed.
"""

from __future__ import annotations

import re

_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]+)?|\[[0-9a-fA-F:]+\](?::[0-9]+)?)"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?(?P<path>{_PART}(?:/{_PART})*)(?::\w[\w.-]{{0,127}})?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?",
    re.ASCII,
)
_HEX = re.compile(r"[0-9a-f]{64}")
_LONGEST = 255  # characters of a repository's path
_DOCKER_HUB = "docker.io"
# Of the algorithms whose digests are known: hexadecimal digits.
_DIGESTS = {"sha256": 64, "sha384": 96, "sha512": 128}


def reference_problem(image: str) -> str | None:
    """Return what is wrong with an image's name, None if nothing is."""
    if _HEX.fullmatch(image):
        return f"invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
    host, rest = _split(image)
    name = rest.partition(":")[0]
    if name.lower() != name:
        return f"invalid reference format: repository name ({name}) must be lowercase"
    found = _REFERENCE.fullmatch(f"{host}/{rest}")
    if found is None:
        return "invalid reference format"
    if len(found["path"]) > _LONGEST:
        return f"repository name must not be more than {_LONGEST} characters"
    return _digest_problem(found["digest"]) if found["digest"] else None


def _split(image: str) -> tuple[str, str]:
    """Return the registry and the rest; what names no registry is Docker Hub's."""
    host, slash, rest = image.partition("/")
    is_host = slash and ({".", ":"} & set(host) or host == "localhost" or host.lower() != host)
    if not is_host:
        host, rest = _DOCKER_HUB, image
    if host == "index.docker.io":
        host = _DOCKER_HUB
    if host == _DOCKER_HUB and "/" not in rest:
        rest = f"library/{rest}"
    return host, rest


def _digest_problem(digest: str) -> str | None:
    algorithm, _, encoded = digest.partition(":")
    if algorithm not in _DIGESTS:
        return "unsupported digest algorithm"
    if len(encoded) != _DIGESTS[algorithm]:
        return "invalid checksum digest length"
    return None if encoded == encoded.lower() else "invalid checksum digest format"
