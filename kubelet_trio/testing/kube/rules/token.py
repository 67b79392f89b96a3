"""Rules of TokenRequest."""

from __future__ import annotations

from kubelet_trio.testing.kube.rules.problems import Problems
from kubelet_trio.testing.kube.store import Json

_LEAST, _MOST = 600, 2**32


def check_token_request(problems: Problems, body: Json) -> None:
    seconds, path = (body.get("spec") or {}).get("expirationSeconds"), "spec.expirationSeconds"
    if seconds is None:
        return
    if seconds < _LEAST:
        problems.invalid(path, seconds, "may not specify a duration less than 10 minutes")
    if seconds > _MOST:
        problems.invalid(path, seconds, "may not specify a duration larger than 2^32 seconds")
