"""Credential provider programs (`--image-credential-provider-bin-dir`).

A program reads a CredentialProviderRequest from its standard input and prints a
CredentialProviderResponse. Its answers are cached for the time that it sets, by image, by registry
or globally. One program does not run twice at a time for one image. Answers for a service account's
token are used only for pods of that account.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from kubelet_trio.credentials.accounts import Accounts, Grant, Puller, grant_of
from kubelet_trio.credentials.errors import NotApplicableError, ProviderError
from kubelet_trio.credentials.matching import Login, Logins, matches, registry
from kubelet_trio.credentials.provider_config import Provider, cache_duration
from kubelet_trio.model import JSON_ERRORS, Meter, get_logger
from kubelet_trio.objects import ObjectError

log = get_logger()

_LIMIT = 60.0  # seconds that a program may take; as upstream (ExecPlugin in plugin/plugin.go)
_OUTPUT = 1 << 20  # bytes that it may print
_KEYS: Mapping[str, Callable[[str], str]] = {
    "Image": lambda image: f"image:{image}",
    "Registry": lambda image: f"registry:{registry(image)}",
    "Global": lambda _image: "global",
}
_Key = tuple[str, tuple[object, ...]]  # the cache key, and the scope: see `Grant`


@dataclass(frozen=True, slots=True)
class _Answer:
    logins: Logins
    until: float  # trio time


@dataclass(slots=True, eq=False)
class Plugin:
    """One provider with its cached answers."""

    provider: Provider
    program: Path
    meter: Meter = field(default_factory=Meter)
    accounts: Accounts | None = None
    _answers: dict[_Key, _Answer] = field(default_factory=dict, init=False)
    _in_flight: dict[_Key, trio.Lock] = field(default_factory=dict, init=False)

    async def logins(self, image: str, puller: Puller | None = None) -> Logins:
        """Return the logins for a repository; none if `matchImages` does not match it.

        Raises `ProviderError`.
        """
        if not any(matches(pattern, image) for pattern in self.provider.match_images):
            return {}
        try:
            grant = await self._grant(puller)
        except NotApplicableError as exc:
            log.debug("credentials.not_for_provider", provider=self.provider.name, why=str(exc))
            return {}
        key = (image, _cache_scope(grant))
        # Many containers of one image start together; upstream has a singleflight group here.
        lock = self._in_flight.setdefault(key, trio.Lock())
        try:
            async with lock:
                # The previous holder of the lock may have cached the answer for us.
                cached = self._cached(*key)
                return cached if cached is not None else await self._ask(image, grant)
        finally:
            # The last one removes the lock; a waiting task will still use it.
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._in_flight.pop(key, None)

    async def _grant(self, puller: Puller | None) -> Grant | None:
        """Return what the provider gets for a pod.

        Raises `ProviderError`, and `NotApplicableError` if it must not be asked.
        """
        if self.provider.tokens is None:
            return None
        try:
            return await grant_of(self.provider.tokens, puller, self.accounts)
        except ObjectError as exc:
            raise ProviderError(f"credential provider {self.provider.name}: {exc}") from exc

    def _cached(self, image: str, scope: tuple[object, ...]) -> Logins | None:
        now = trio.current_time()
        # Expired answers leave at the next lookup: the cache needs no task of its own.
        self._answers = {key: a for key, a in self._answers.items() if a.until > now}
        answers = (self._answers.get((key(image), scope)) for key in _KEYS.values())
        return next((answer.logins for answer in answers if answer is not None), None)

    async def _ask(self, image: str, grant: Grant | None) -> Logins:
        provider = self.provider
        request: dict[str, Any] = {
            "kind": "CredentialProviderRequest",
            "apiVersion": provider.api_version,
            "image": image,
        }
        # Only for providers with `tokenAttributes`.
        if grant is not None:
            request["serviceAccountToken"] = grant.token
            if grant.annotations:
                request["serviceAccountAnnotations"] = grant.annotations
        name, began = (provider.name,), trio.current_time()
        try:
            printed = await self._run(msgspec.json.encode(request))
        except ProviderError:
            self.meter.count("kubelet_credential_provider_plugin_errors_total", name)
            raise
        finally:
            took = trio.current_time() - began
            self.meter.observe("kubelet_credential_provider_plugin_duration", took, name)
        logins, key, kept = read_response(printed, provider, grant)
        if kept > 0:
            until = trio.current_time() + kept
            self._answers[_KEYS[key](image), _cache_scope(grant)] = _Answer(logins, until)
        return logins

    async def _run(self, request: bytes) -> bytes:
        name = self.provider.name
        command = [str(self.program), *self.provider.args]
        try:
            with trio.fail_after(_LIMIT):
                done = await trio.run_process(
                    command,
                    stdin=request,
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                    # With the agent's own variables, as upstream (kubernetes/kubernetes#102750).
                    env={**os.environ, **dict(self.provider.env)},
                )
        except trio.TooSlowError:
            raise ProviderError(f"credential provider {name} took more than {_LIMIT:g} s") from None
        except (OSError, subprocess.SubprocessError) as exc:
            raise ProviderError(f"credential provider {name}: {exc}") from exc
        if done.returncode:
            stderr = done.stderr.decode(errors="replace").strip()[-500:]
            raise ProviderError(f"credential provider {name} exited {done.returncode}: {stderr}")
        if len(done.stdout) > _OUTPUT:
            raise ProviderError(f"credential provider {name} printed more than {_OUTPUT} bytes")
        return done.stdout


def make_plugins(
    providers: Sequence[Provider],
    directory: Path,
    meter: Meter | None = None,
    accounts: Accounts | None = None,
) -> tuple[Plugin, ...]:
    """Return the plugins. Raises ValueError naming a program that does not exist.

    `accounts` is None without an API server: pods then have no service accounts.
    """
    meter = meter or Meter()
    plugins = []
    for provider in providers:
        program = directory / provider.name
        if not os.access(program, os.X_OK):
            raise ValueError(f"credential provider {provider.name}: no program {program}")
        plugins.append(Plugin(provider, program, meter, accounts))
    return tuple(plugins)


def _cache_scope(grant: Grant | None) -> tuple[object, ...]:
    return () if grant is None else grant.cache_scope


def read_response(
    printed: bytes, provider: Provider, grant: Grant | None
) -> tuple[Logins, str, float]:
    """Return the logins, cacheKeyType and cache time of an answer. Raises `ProviderError`."""
    try:
        return _response(msgspec.json.decode(printed), provider, grant)
    # Not chained: a UnicodeDecodeError holds the whole answer, with its credentials.
    except (*JSON_ERRORS, ValueError) as exc:
        raise ProviderError(f"credential provider {provider.name}: {exc}") from None


def _response(answer: Any, provider: Provider, grant: Grant | None) -> tuple[Logins, str, float]:
    if not isinstance(answer, dict) or answer.get("kind") != "CredentialProviderResponse":
        raise ValueError("its answer is not a CredentialProviderResponse")
    if answer.get("apiVersion") != provider.api_version:
        raise ValueError(f"apiVersion: its answer is not in {provider.api_version}")
    key = answer.get("cacheKeyType")
    if not isinstance(key, str) or key not in _KEYS:
        raise ValueError(f"cacheKeyType: {key!r} is not one of {', '.join(_KEYS)}")
    kept = provider.default_cache_duration
    if answer.get("cacheDuration") is not None:
        kept = cache_duration(answer["cacheDuration"])
    logins = {}
    auths = answer.get("auth") or {}
    if not isinstance(auths, dict):
        raise ValueError("auth: not an object of logins")
    for location, auth in auths.items():
        if not isinstance(auth, dict):
            raise ValueError("auth: not an object of logins")
        username, password = str(auth.get("username") or ""), str(auth.get("password") or "")
        # The token is bound to one pod: cached by account, other pods would use it.
        if grant is not None and password == grant.token and not grant.is_per_token:
            raise ValueError("auth: a token as password needs cacheType Token")
        source = grant.source if grant is not None else None
        logins[location] = Login(username, password, source=source)
    return logins, key, kept
