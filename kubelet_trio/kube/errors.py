"""The errors of this package.

    KubeError                 the API server refused a request
        NotFoundError         404
        AlreadyExistsError    409 on a create
        ConflictError         409 on a precondition
        GoneError             410
    KubeUnavailableError      no usable answer of an API server
        KubeTimeoutError      none in time
    CredentialsError          there are no client credentials
    KubeconfigError           a kubeconfig that cannot be used
    CertificateError          a certificate could not be obtained
    PatchError                a patch that cannot be applied
        MergeKeyError         an item of a merged list without its merge key

A request to the API server raises `API_ERRORS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class KubeError(Exception):
    """The API server refused a request, with a `Status` object.

    `code` is the HTTP status, `reason` Kubernetes' word for it (`NotFound`), `retry_after` seconds,
    `causes` the reasons of its details.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = frozenset(causes)


class NotFoundError(KubeError):
    """404."""


class AlreadyExistsError(KubeError):
    """409 `AlreadyExists`: an object of that name exists."""


class ConflictError(KubeError):
    """409 `Conflict`: a precondition (resource version, UID) does not hold."""


class GoneError(KubeError):
    """410: the requested resource version is too old; list again."""


class KubeUnavailableError(Exception):
    """No usable answer: no connection, a timeout, or an answer that is not an API server's."""


class KubeTimeoutError(KubeUnavailableError):
    """No answer in time. What was asked for may have happened."""


# What a request to the API server raises.
API_ERRORS = (KubeError, KubeUnavailableError)


def error_of(
    code: int,
    reason: str,
    message: str,
    retry_after: float | None = None,
    causes: Iterable[str] = (),
) -> KubeError:
    """Return the error for a refusal, of the class that fits its code and reason."""
    kind = KubeError
    if code == 404:
        kind = NotFoundError
    elif code == 409:
        kind = AlreadyExistsError if reason == "AlreadyExists" else ConflictError
    elif code == 410:
        kind = GoneError
    return kind(code, reason, message, retry_after, causes)


class CredentialsError(Exception):
    """There are no credentials. The text names the file or program and the problem."""


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used. The text names file and field."""

    def __init__(self, origin: str, field: str, problem: str) -> None:
        super().__init__(f"{origin}: {field}: {problem}" if field else f"{origin}: {problem}")
        self.origin = origin
        self.field = field
        self.problem = problem


class CertificateError(Exception):
    """A certificate could not be obtained: denied, failed, not signed in time, or unusable."""


class PatchError(ValueError):
    """A patch that cannot be applied. The text names the place."""


class MergeKeyError(PatchError):
    """An item of a merged list does not have the list's merge key."""

    def __init__(self, item: Any, key: str, path: str) -> None:
        super().__init__(f"map: {item} does not contain declared merge key: {key} ({path})")
        self.item = item
        self.key = key
