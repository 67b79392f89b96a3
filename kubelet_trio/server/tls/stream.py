"""The server side of one TLS connection, for high throughput.

Like `trio.SSLStream`, but one read returns all records that have arrived. `kubectl cp` sends
records of 16 KiB, and forwarding each one separately costs four times the CPU time. There is no
renegotiation (TLS 1.3 has none, and the server's context disables it).

One task may receive while another sends. EOF without close_notify is a broken connection.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterable
from typing import Any

import trio
from trio.abc import HalfCloseableStream

from kubelet_trio.model import joined

_RECEIVE = 256 * 1024  # bytes returned at a time
# Bytes read from the socket at a time: with the rest of a record of the read before, what they
# decrypt to is returned at once, and no small rest of it makes a read of its own.
_FEED = _RECEIVE - 32 * 1024
_SEND = 256 * 1024  # bytes encrypted at a time: bounds the copy in memory
_JOINED = 64 * 1024  # bytes, and a part, that are joined at a time
_CLOSE_LIMIT = 5.0  # seconds for close_notify to a client that does not read


class TlsStream(HalfCloseableStream):
    """TLS over another stream. Call `do_handshake` first."""

    def __init__(self, transport: HalfCloseableStream, context: ssl.SSLContext) -> None:
        self._transport = transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._plain = bytearray()  # grows to `_RECEIVE` with the first read
        self._sending = trio.Lock()
        self._is_over = False  # nothing more can be sent

    async def do_handshake(self) -> None:
        """Do the handshake. Raises BrokenResourceError if the client fails it."""
        while True:
            failure: ssl.SSLError | None = None
            is_done = False
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as exc:
                failure = exc
            # Also after a failure: the alert tells the client the reason.
            await self._flush()
            if failure is not None:
                self._is_over = True
                raise trio.BrokenResourceError from failure
            if is_done:
                return
            await self._feed()

    def certificate(self) -> dict[str, Any] | None:
        """Return the client's verified certificate; None if it sent none."""
        return self._tls.getpeercert() or None

    def certificate_der(self) -> bytes:
        return self._tls.getpeercert(binary_form=True) or b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what has arrived, up to `max_bytes`; empty after the client's close_notify."""
        limit = _RECEIVE if max_bytes is None else max_bytes
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                data = self._read(limit)
            except ssl.SSLError as exc:
                self._is_over = True
                raise trio.BrokenResourceError from exc
            if self._outgoing.pending:
                await self._flush()  # TLS answers by itself, to a key update for example
            if data is not None:
                return data
            await self._feed()

    def _read(self, limit: int) -> bytes | None:
        """Return what can be decrypted now; None if that is nothing, empty at the end."""
        if len(self._plain) < limit:
            self._plain = bytearray(limit)
        # SSLObject.read returns at most one record: call it until no full record is left.
        with memoryview(self._plain) as view:
            count = 0
            while count < limit:
                try:
                    read: int = self._tls.read(limit - count, view[count:limit])  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLZeroReturnError:
                    return bytes(view[:count])
                if not read:
                    return bytes(view[:count])
                count += read
            return bytes(view[:count]) if count else None

    async def _feed(self) -> None:
        data = await self._transport.receive_some(_FEED)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send. After a cancelled send the connection cannot send any more."""
        async with self._sending:
            with memoryview(data) as view:
                for start in range(0, len(view), _SEND):
                    self._write(view[start : start + _SEND])
                    await self._flush_held()

    async def send_parts(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send parts as `send_all` does, without joining all of them.

        They are joined and encrypted a few at a time: the copies stay in the core's cache.
        """
        async with self._sending:
            for piece in joined(parts, _JOINED):
                if self._outgoing.pending + len(piece) > _SEND:
                    await self._flush_held()
                self._write(piece)
            await self._flush_held()

    def _write(self, data: bytes | memoryview) -> None:
        self._check()
        try:
            self._tls.write(data)
        except ssl.SSLError as exc:
            self._is_over = True
            raise trio.BrokenResourceError from exc

    async def wait_send_all_might_not_block(self) -> None:
        await self._transport.wait_send_all_might_not_block()

    async def _flush(self) -> None:
        async with self._sending:
            await self._flush_held()

    async def _flush_held(self) -> None:
        """Send TLS's output. The caller holds the lock: records must leave in order."""
        data = self._outgoing.read()
        if not data:
            return
        was_over, self._is_over = self._is_over, True
        await self._transport.send_all(data)
        self._is_over = was_over  # not reached when cancelled in the middle of a record

    def _check(self) -> None:
        if self._is_over:
            raise trio.BrokenResourceError("the TLS connection is broken")

    async def send_eof(self) -> None:
        """Close the sending side, without close_notify: HTTP has delimited the answer."""
        self._is_over = True
        await self._transport.send_eof()

    async def aclose(self) -> None:
        """Send close_notify, within a time limit, and close."""
        try:
            if not self._is_over:
                self._is_over = True
                with trio.move_on_after(_CLOSE_LIMIT):
                    await self._send_close_notify()
        finally:
            await trio.aclose_forcefully(self._transport)

    async def _send_close_notify(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # SSLWantReadError: we do not wait for the client's
            self._tls.unwrap()
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._flush()
