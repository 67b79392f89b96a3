"""Requests that a fake API server answers without storing an object: tokens and reviews."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from typing import Any

from kubelet_trio.kube import ConflictError, NotFoundError
from kubelet_trio.model import WallClock, rfc3339
from kubelet_trio.testing.kube.store import Json, Store

Allow = Callable[[Json], bool]


class Reviews:
    """Issued tokens, known users, and their permissions."""

    def __init__(self, store: Store, clock: WallClock) -> None:
        self._store = store
        self._clock = clock
        self._numbers = itertools.count(1)
        self.tokens: dict[str, Json] = {}  # token -> the claims
        self.users: dict[str, Json] = {}  # token -> the `user` of a review
        self.allow: Allow = lambda spec: True

    def answer(self, kind: str, body: Json) -> Json | None:
        """Return the response to a review, None if the kind is no review."""
        if kind == "TokenReview":
            return {**body, "status": self._token_status(body["spec"])}
        if kind == "SubjectAccessReview":
            return {**body, "status": {"allowed": self.allow(body["spec"])}}
        return None

    def token(self, account: Json, request: Json) -> Json:
        """Issue a token for a service account.

        Raises:
            KubeError: the object that it shall be bound to does not exist, or has another UID.
        """
        spec = request.get("spec") or {}
        seconds = spec.get("expirationSeconds") or 3600
        meta = account["metadata"]
        self._check_bound(spec.get("boundObjectRef"), meta["namespace"])
        now = int(self._clock.time())
        claims = {
            "aud": spec.get("audiences") or ["https://kubernetes.default.svc"],
            "exp": now + seconds,
            "iat": now,
            "jti": str(next(self._numbers)),
            "sub": f"system:serviceaccount:{meta['namespace']}:{meta['name']}",
            "kubernetes.io": {
                "namespace": meta["namespace"],
                "serviceaccount": {"name": meta["name"], "uid": meta["uid"]},
                "bound": spec.get("boundObjectRef"),
            },
        }
        # Like a JWT, so that clients can read its claims; nothing checks the signature.
        token = ".".join(map(_segment, ({"alg": "RS256"}, claims, {})))
        self.tokens[token] = claims
        status = {"token": token, "expirationTimestamp": rfc3339(now + seconds)}
        return {**request, "spec": {**spec, "expirationSeconds": seconds}, "status": status}

    def _check_bound(self, bound: Json | None, namespace: str) -> None:
        if not bound:
            return
        kind, name, uid = bound.get("kind", ""), bound.get("name", ""), bound.get("uid", "")
        found = self._store.get(kind, namespace, name)
        if found is None:
            raise NotFoundError(404, "NotFound", f'{kind.lower()}s "{name}" not found')
        if uid and uid != found["metadata"]["uid"]:
            message = (
                f'Operation cannot be fulfilled on {kind.lower()}s "{name}": the UID in the bound '
                f"object reference ({uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise ConflictError(409, "Conflict", message)

    def _token_status(self, spec: Json) -> Json:
        token = spec.get("token", "")
        if token in self.users:
            return {
                "authenticated": True,
                "user": self.users[token],
                "audiences": spec.get("audiences"),
            }
        claims = self.tokens.get(token)
        if claims is None or claims["exp"] <= self._clock.time():
            return {"error": "invalid bearer token"}
        groups = ["system:serviceaccounts", "system:authenticated"]
        return {"authenticated": True, "user": {"username": claims["sub"], "groups": groups},
                "audiences": claims["aud"]}  # fmt: skip


def _segment(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
