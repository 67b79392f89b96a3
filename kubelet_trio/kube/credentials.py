"""Client credentials: tokens and certificates, read again when their sources change.

A certificate and its key are two files, replaced one after the other. While they do not match, the
previous pair stays in use.
"""

from __future__ import annotations

import base64
import math
import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from kubelet_trio.kube.errors import CredentialsError
from kubelet_trio.kube.exec_plugin import ExecCredentials, run_plugin
from kubelet_trio.kube.kubeconfig import ClientConfig, DataOrFile
from kubelet_trio.model import Offload, Purpose, SystemClock, WallClock, get_logger, thread_offload

log = get_logger()

_CHECK_PERIOD = 5.0  # seconds between two checks of the files
_LEEWAY = 10.0  # seconds before its expiry that a plugin's token is renewed

Signature = tuple[object, ...]


class AwaitedCertificate:
    """A node's first client certificate: requests wait until it has been issued."""

    def __init__(self) -> None:
        self._settled = trio.Event()
        self._is_issued = False

    def arrived(self) -> None:
        """Release the waiting requests: the certificate has been issued."""
        self._is_issued = True
        self._settled.set()

    def asked(self) -> None:
        """Let requests wait again: the certificate has been requested."""
        if self._settled.is_set() and not self._is_issued:
            self._settled = trio.Event()

    def given_up(self) -> None:
        """Fail the waiting requests: the certificate is not being requested any more."""
        self._settled.set()

    async def wait(self) -> None:
        """Wait for the certificate. Raises `CredentialsError` if it was given up."""
        await self._settled.wait()
        if not self._is_issued:
            raise CredentialsError("there is no client certificate yet")


@dataclass(frozen=True, slots=True)
class Material:
    """The certificates and the key for TLS; connections with equal material may be shared."""

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""


class Credentials:
    """The current credentials of one client configuration."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        offload: Offload = thread_offload.of(Purpose.CERTIFICATES),
        clock: WallClock | None = None,
        awaited: AwaitedCertificate | None = None,
    ) -> None:
        self.config = config
        self._awaited = awaited
        self._is_issued = False  # `config.issued` exists and replaces all other credentials
        self._offload = offload
        self._clock = clock or SystemClock()
        self._lock = trio.Lock()
        self._looked = -math.inf  # trio's time of the last check of the files
        self._seen: Signature = ()
        self._token = config.token
        self._executed: ExecCredentials | None = None
        self.material: Material | None = None  # None before the first `refresh`

    async def refresh(self, *, refused: bool = False) -> None:
        """Read changed files again; if the server `refused` the credentials, read everything.

        Raises:
            CredentialsError: there are no credentials, and there were none before.
        """
        if self._awaited is not None:
            await self._awaited.wait()
        async with self._lock:
            if self.config.issued is not None and not self._is_issued:
                self._is_issued = await self._offload(self.config.issued.exists)
            plugin = self.config.exec_plugin if not self._is_issued else None
            if plugin is not None and (refused or self._expired()):
                self._executed = await run_plugin(plugin, self.config)
                # Its certificate may be new: build the material again below.
                self._looked = -math.inf
            now = trio.current_time()
            is_due = refused or (now - self._looked >= _CHECK_PERIOD and not self.is_fixed)
            if self.material is None or is_due:
                self._looked = now
                await self._look()

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers of every request that identify the client."""
        config = self.config
        headers = list(config.impersonate)
        if self._is_issued:
            return headers
        token = (self._executed.token if self._executed is not None else "") or self._token
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        elif config.username:
            pair = base64.b64encode(f"{config.username}:{config.password}".encode()).decode()
            headers.append(("Authorization", f"Basic {pair}"))
        return headers

    @property
    def is_fixed(self) -> bool:
        """Whether the credentials cannot change, so that a refusal is final."""
        config = self.config
        return config.exec_plugin is None and not any(_files(config))

    def _expired(self) -> bool:
        if self._executed is None:
            return True
        return self._executed.expires - _LEEWAY <= self._clock.time()

    async def _look(self) -> None:
        seen = await self._offload(_signature, self.config)
        if self.material is not None and seen == self._seen and self._executed is None:
            return
        try:
            material, token = await self._offload(_read, self.config)
            if self._executed is not None and self._executed.key and not self._is_issued:
                executed = self._executed
                material = replace(material, certificate=executed.certificate, key=executed.key)
            if material != self.material:
                await self._offload(make_context, self.config, material)  # raises if unusable
        except CredentialsError as exc:
            if self.material is None:
                raise
            log.warning("kube.credentials", origin=self.config.origin, error=str(exc))
            return  # `_seen` is unchanged: the next check tries again
        self.material, self._token, self._seen = material, token, seen


def make_context(config: ClientConfig, material: Material) -> ssl.SSLContext:
    """Return a TLS context. Blocks.

    Raises:
        CredentialsError: a malformed certificate, or a key that does not match it.
    """
    # Not `create_default_context`: from Python 3.13 it sets VERIFY_X509_STRICT, which refuses CA
    # certificates without a key identifier, and many clusters have such.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif material.ca:
        try:
            context.load_verify_locations(cadata=material.ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as exc:
            raise _bad(config, config.ca, f"no certificates in PEM: {exc}") from exc
    elif config.server.startswith("https:"):
        context.load_default_certs()
    if material.certificate:
        try:
            _load_pair(context, material)
        except (ssl.SSLError, OSError, ValueError) as exc:
            problem = f"no pair of certificate and key in PEM: {exc}"
            raise _bad(config, config.certificate, problem) from exc
    return context


def _load_pair(context: ssl.SSLContext, material: Material) -> None:
    """Load certificate and key. OpenSSL reads only files, so they go through a memfd."""
    descriptor = os.memfd_create("client", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(material.certificate + b"\n" + material.key)
        file.flush()
        # Without this callback OpenSSL would ask for a passphrase at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_passphrase)


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _signature(config: ClientConfig) -> Signature:
    """Return a value that changes when one of the files changes."""
    return tuple(_stat(path) for path in _files(config) if path is not None)


def _files(config: ClientConfig) -> tuple[Path | None, ...]:
    pair = config.certificate.file, config.key.file
    return config.ca.file, *pair, config.token_file, config.issued


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # All of these: some programs replace the file or a link to it, others write in place.
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(config: ClientConfig) -> tuple[Material, str]:
    """Return the contents of the files. Raises `CredentialsError`."""
    if config.issued is not None and config.issued.exists():
        issued = _bytes(config, DataOrFile(file=config.issued))
        return Material(_bytes(config, config.ca), issued), ""
    material = read_material(config)
    token = config.token
    if config.token_file is not None:
        token = (
            _bytes(config, DataOrFile(file=config.token_file, field="tokenFile")).decode().strip()
        )
        if not token:
            raise CredentialsError(f"{config.token_file}: read empty token")
    return material, token


def read_material(config: ClientConfig) -> Material:
    """Return the kubeconfig's own certificates and key. Blocks. Raises `CredentialsError`."""
    return Material(
        *(_bytes(config, source) for source in (config.ca, config.certificate, config.key))
    )


def _bytes(config: ClientConfig, source: DataOrFile) -> bytes:
    try:
        return source.read()
    except OSError as exc:
        raise _bad(config, source, exc.strerror or str(exc)) from exc


def _bad(config: ClientConfig, source: DataOrFile, problem: str) -> CredentialsError:
    place = f"{source.field}: " if source.field else ""
    file = f"{source.file}: " if source.file is not None else ""
    return CredentialsError(f"{config.origin}: {place}{file}{problem}")
