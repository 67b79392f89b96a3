"""An API server that knows tokens and who may, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio
from lightkube.models.authentication_v1 import TokenReview, TokenReviewStatus, UserInfo
from lightkube.models.authorization_v1 import (
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    SubjectAccessReviewStatus,
)
from msgspec.structs import replace

from kubelet_trio.kube import KubeUnavailableError

T = TypeVar("T")


class Reviews:
    """Answers reviews; `asked` holds what it was asked, in order.

    `tokens` are users by token, `may` says who may, `problem` breaks everything.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, UserInfo] = {}
        self.may: Callable[[SubjectAccessReviewSpec], bool] = lambda _: False
        self.problem: Exception | None = None
        self.asked: list[object] = []

    async def create(self, obj: T, /) -> T:
        await trio.sleep(1)
        self.asked.append(obj)
        if self.problem is not None:
            raise self.problem
        if isinstance(obj, TokenReview):
            user = self.tokens.get(obj.spec.token)
            status = TokenReviewStatus(authenticated=bool(user), user=user)
            return replace(obj, status=status)
        assert isinstance(obj, SubjectAccessReview)
        return replace(obj, status=SubjectAccessReviewStatus(allowed=self.may(obj.spec)))


def unavailable() -> KubeUnavailableError:
    return KubeUnavailableError("no connection")
