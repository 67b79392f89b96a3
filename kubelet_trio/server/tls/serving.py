"""The server side of TLS: serving certificates and client CA, reloaded when their files change.

Nothing watches the files. They are checked when a client connects, at most once a second, so an
idle server costs nothing. Files that cannot be used (a key that does not match, a file written in
part) are logged once, and the previous certificates stay in use.

Client certificates are requested if there is a client CA, and verified in the handshake. An
invalid one ends the handshake; the Go kubelet completes it and answers 401 instead.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import trio
from trio.abc import HalfCloseableStream

from kubelet_trio.model import Offload, get_logger
from kubelet_trio.server.errors import TlsError
from kubelet_trio.server.http.types import ClientPeer
from kubelet_trio.server.tls.stream import TlsStream

log = get_logger()

_CHECK_PERIOD = 1.0  # seconds

VERSIONS: Mapping[str, ssl.TLSVersion] = MappingProxyType(
    {
        "": ssl.TLSVersion.TLSv1_2,
        "VersionTLS12": ssl.TLSVersion.TLSv1_2,
        "VersionTLS13": ssl.TLSVersion.TLSv1_3,
    }
)

# Go's name -> OpenSSL's. Those of TLS 1.3 are always on: neither crypto/tls nor `set_ciphers`
# configures them.
CIPHERS: Mapping[str, str] = MappingProxyType(
    {
        "TLS_AES_128_GCM_SHA256": "",
        "TLS_AES_256_GCM_SHA384": "",
        "TLS_CHACHA20_POLY1305_SHA256": "",
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
        "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
        "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
        "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    }
)
# What Go offers by default: forward secrecy and authenticated encryption first.
_DEFAULT_CIPHERS = (
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:"
    "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"
    "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:"
    "ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES256-SHA:ECDHE-RSA-AES256-SHA"
)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The certificate files and the TLS parameters, under the configuration's names."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    min_version: str = ""
    cipher_suites: tuple[str, ...] = ()
    # Certificate and key in one file, issued by the cluster: it replaces the pair once it exists.
    # If `cert_file` is this file too, there is no certificate until then.
    issued: Path | None = None


_Stamp = tuple[tuple[int, int, int] | None, ...]


class ServerTls:
    """Does TLS handshakes with the certificates that the files hold now."""

    def __init__(
        self, settings: TlsSettings, offload: Offload, period: float = _CHECK_PERIOD
    ) -> None:
        """`period` is the time in seconds between two checks of the files."""
        self._settings = settings
        self._offload = offload
        self._period = period
        self._context: ssl.SSLContext | None = None
        self._stamp: _Stamp = ()
        self._client_ca: bytes = b""
        self._checked_at = 0.0

    async def load(self) -> None:
        """Read the certificates. Raises `TlsError`.

        An issued certificate that cannot be used is ignored: the rotation requests a new one.
        """
        stamp = await self._offload(_stamp, self._settings)
        try:
            pair = await self._offload(_pair, self._settings)
            context, client_ca = await self._offload(_make_context, self._settings, pair)
        except TlsError as exc:
            if self._settings.issued is None:
                raise
            log.warning("tls.not_loaded", error=str(exc))
            pair = _own_pair(self._settings)
            context, client_ca = await self._offload(_make_context, self._settings, pair)
        self._context, self._client_ca = context, client_ca
        self._stamp, self._checked_at = stamp, trio.current_time()

    async def secure(self, stream: trio.SocketStream) -> tuple[HalfCloseableStream, ClientPeer]:
        """Do the handshake; the caller sets the deadline. Raises BrokenResourceError."""
        await self._refresh()
        # Read both now: the client CA may change during a slow client's handshake.
        context, client_ca = self._context, self._client_ca
        assert context is not None
        secured = TlsStream(stream, context)
        await secured.do_handshake()
        peer = ClientPeer(
            certificate=secured.certificate(),
            certificate_der=secured.certificate_der(),
            is_current=lambda: client_ca == self._client_ca,
        )
        return secured, peer

    async def _refresh(self) -> None:
        if trio.current_time() < self._checked_at + self._period:
            return
        self._checked_at = trio.current_time()  # before the await: only one task checks
        stamp = await self._offload(_stamp, self._settings)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # of unusable files too: log once, try again when they change
        pair = await self._offload(_pair, self._settings)
        try:
            context, client_ca = await self._offload(_make_context, self._settings, pair)
        except TlsError as exc:
            log.warning("tls.not_reloaded", error=str(exc))
            return
        self._context, self._client_ca = context, client_ca
        log.info("tls.reloaded", cert_file=str(pair[0]) if pair is not None else None)


def _stamp(settings: TlsSettings) -> _Stamp:
    files = (settings.cert_file, settings.key_file, settings.client_ca_file, settings.issued)
    stamps: list[tuple[int, int, int] | None] = []
    for path in files:
        # Inode and size as well as the time: a file may be replaced within the clock's resolution.
        try:
            found = path.stat() if path is not None else None
        except OSError:
            found = None
        stamps.append(None if found is None else (found.st_mtime_ns, found.st_ino, found.st_size))
    return tuple(stamps)


def _pair(settings: TlsSettings) -> tuple[Path, Path] | None:
    """Return the files of certificate and key; None if there are none yet. Blocks."""
    if settings.issued is not None and settings.issued.exists():
        return settings.issued, settings.issued
    return _own_pair(settings)


def _own_pair(settings: TlsSettings) -> tuple[Path, Path] | None:
    if settings.cert_file == settings.issued:
        return None
    return settings.cert_file, settings.key_file


def _make_context(
    settings: TlsSettings, pair: tuple[Path, Path] | None
) -> tuple[ssl.SSLContext, bytes]:
    """Return a context and its client CA. Blocks. Raises `TlsError`.

    With `pair` None the context has no certificate and every handshake fails, as with the Go
    kubelet before its first certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A client could start renegotiations to load the CPU; Go's crypto/tls refuses them as well.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # The client's order reflects its hardware (AES or not); OpenSSL's own prefers 256 bits.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.minimum_version = VERSIONS[settings.min_version]
    context.set_alpn_protocols(["http/1.1"])
    chosen = [CIPHERS[name] for name in settings.cipher_suites if CIPHERS[name]]
    try:
        context.set_ciphers(":".join(chosen) or _DEFAULT_CIPHERS)
    except ssl.SSLError as exc:
        raise TlsError(f"tlsCipherSuites: this OpenSSL has none of {':'.join(chosen)}") from exc
    if pair is not None:
        try:
            context.load_cert_chain(*pair)
        except (OSError, ssl.SSLError) as exc:
            raise TlsError(f"{pair[0]} with {pair[1]}: {exc}") from exc
    if settings.client_ca_file is None:
        return context, b""
    try:
        client_ca = settings.client_ca_file.read_bytes()
        context.load_verify_locations(cadata=client_ca.decode("ascii"))
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise TlsError(f"client CA {settings.client_ca_file}: {exc}") from exc
    context.verify_mode = ssl.CERT_OPTIONAL
    # As in Go, an intermediate CA in the file is trusted without its root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context, client_ca
