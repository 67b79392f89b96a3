"""The server's side of one TLS connection, made for much data.

As `trio.SSLStream`, but a read returns all the records that have arrived and not one of them:
what `kubectl cp` sends comes in records of 16 KiB, and passing each on by itself costs four times
the CPU. In exchange there is no renegotiation, which nobody needs and TLS 1.3 has not.

One task may receive while another sends. EOF without a good-bye is a broken connection.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

import trio
from trio.abc import HalfCloseableStream

_RECEIVE = 256 * 1024  # bytes taken from the socket at a time
_SEND = 256 * 1024  # bytes encrypted at a time: what is held in memory beside the data
_CLOSE_LIMIT = 5.0  # seconds to say good-bye to a client that does not read


class TlsStream(HalfCloseableStream):
    """TLS over `below`; shake hands first."""

    def __init__(self, below: HalfCloseableStream, context: ssl.SSLContext) -> None:
        self._below = below
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._plain = bytearray()  # grows to `_RECEIVE` once there is something to receive
        self._sending = trio.Lock()
        self._is_over = False  # nothing more can be said

    async def do_handshake(self) -> None:
        """Shake hands. Raises BrokenResourceError for a client that will not."""
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
            await self._flush()  # of a failure, the alert that says why
            if failure is not None:
                self._is_over = True
                raise trio.BrokenResourceError from failure
            if is_done:
                return
            await self._feed()

    def certificate(self) -> dict[str, Any] | None:
        """Return the client's checked certificate; None if it has shown none."""
        return self._tls.getpeercert() or None

    def certificate_der(self) -> bytes:
        return self._tls.getpeercert(binary_form=True) or b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what has arrived, up to `max_bytes`; empty at the client's good-bye."""
        most = _RECEIVE if max_bytes is None else max_bytes
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                data = self._read(most)
            except ssl.SSLError as exc:
                self._is_over = True
                raise trio.BrokenResourceError from exc
            if self._outgoing.pending:
                await self._flush()  # TLS has something to say of its own: a new key
            if data is not None:
                return data
            await self._feed()

    def _read(self, most: int) -> bytes | None:
        """Return what can be decrypted now; None if that is nothing, empty at the end."""
        if len(self._plain) < most:
            self._plain = bytearray(most)
        with memoryview(self._plain) as view:
            count = 0
            while count < most:
                try:
                    read: int = self._tls.read(most - count, view[count:most])  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLZeroReturnError:
                    return bytes(view[:count])
                if not read:
                    return bytes(view[:count])
                count += read
            return bytes(view[:count]) if count else None

    async def _feed(self) -> None:
        data = await self._below.receive_some(_RECEIVE)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send. A cancelled send ends what can be said."""
        async with self._sending:
            with memoryview(data) as view:
                for start in range(0, len(view), _SEND):
                    self._check()
                    try:
                        self._tls.write(view[start : start + _SEND])
                    except ssl.SSLError as exc:
                        self._is_over = True
                        raise trio.BrokenResourceError from exc
                    await self._flush_held()

    async def wait_send_all_might_not_block(self) -> None:
        await self._below.wait_send_all_might_not_block()

    async def _flush(self) -> None:
        async with self._sending:
            await self._flush_held()

    async def _flush_held(self) -> None:
        """Send what TLS has ready; the caller holds the lock, so that it leaves in order."""
        data = self._outgoing.read()
        if not data:
            return
        was_over, self._is_over = self._is_over, True
        await self._below.send_all(data)
        self._is_over = was_over  # else: cut off in the middle of a record

    def _check(self) -> None:
        if self._is_over:
            raise trio.BrokenResourceError("the TLS connection is broken")

    async def send_eof(self) -> None:
        """End what is sent, without a good-bye: the answer was whole."""
        self._is_over = True
        await self._below.send_eof()

    async def aclose(self) -> None:
        """Say good-bye, to who listens, and close."""
        try:
            if not self._is_over:
                self._is_over = True
                with trio.move_on_after(_CLOSE_LIMIT):
                    await self._say_good_bye()
        finally:
            await trio.aclose_forcefully(self._below)

    async def _say_good_bye(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it wants the client's, which nobody waits for
            self._tls.unwrap()
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._flush()
