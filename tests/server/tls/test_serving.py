"""TLS of the kubelet API on loopback: who gets through the handshake, and with what."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from kubelet_trio.model import thread_offload
from kubelet_trio.server import (
    Limits,
    Request,
    Response,
    ServerTls,
    TlsError,
    TlsSettings,
    ensure_self_signed,
    open_tcp,
    serve_http,
)
from tests.server.certificates import Authority, Pair

_LIMIT = 60.0  # seconds, on a busy machine


async def who(request: Request) -> Response:
    certificate = request.peer.certificate
    subject = certificate["subject"] if certificate else None
    return Response(body=f"{request.path} {subject}".encode())


class Served:
    """A server on loopback with certificates in `directory`."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.authority = authority
        cert_file, key_file = authority.sign_server().write(directory, "server")
        self.client_ca = directory / "client-ca.crt"
        self.client_ca.write_bytes(authority.pem)
        self.settings = TlsSettings(cert_file, key_file, self.client_ca)
        self.port = 0

    @contextlib.asynccontextmanager
    async def run(self, limits: Limits | None = None) -> AsyncIterator[None]:
        tls = ServerTls(self.settings, thread_offload, period=0)
        await tls.load()
        listeners = await open_tcp("127.0.0.1", 0)
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:

            async def serve(*, task_status: trio.TaskStatus[None]) -> None:
                await serve_http(
                    who, listeners, limits or Limits(), secure=tls.secure, task_status=task_status
                )

            await nursery.start(serve)
            with trio.fail_after(_LIMIT):
                yield
            nursery.cancel_scope.cancel()

    def client_context(self, directory: Path, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        if pair is not None:
            context.load_cert_chain(*pair.write(directory, "client"))
        return context

    @contextlib.asynccontextmanager
    async def connect(
        self, context: ssl.SSLContext
    ) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", self.port, ssl_context=context)
        try:
            yield stream
        finally:
            await trio.aclose_forcefully(stream)

    async def asked(self, context: ssl.SSLContext) -> bytes:
        async with self.connect(context) as stream:
            return await ask(stream)


async def ask(stream: trio.abc.Stream, path: str = "/x", *, last: bool = True) -> bytes:
    close = b"Connection: close\r\n" if last else b""
    await stream.send_all(b"GET %b HTTP/1.1\r\nHost: h\r\n%b\r\n" % (path.encode(), close))
    answer = bytearray()
    while data := await stream.receive_some():
        answer += data
        if not last and b"\r\n\r\n" in answer and not answer.endswith(b"\r\n\r\n"):
            break
    return bytes(answer)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path, Authority())


async def test_a_client_is_known_by_its_certificate(served: Served, tmp_path: Path) -> None:
    context = served.client_context(tmp_path, served.authority.sign("alice", "system:masters"))
    async with served.run():
        answer = await served.asked(context)
    assert b"system:masters" in answer
    assert b"alice" in answer


async def test_a_client_without_a_certificate_gets_through_unknown(
    served: Served, tmp_path: Path
) -> None:
    async with served.run():
        answer = await served.asked(served.client_context(tmp_path))
    assert answer.endswith(b"/x None")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_of_tls_are_spoken(
    served: Served, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = served.client_context(tmp_path)
    context.minimum_version = context.maximum_version = version
    async with served.run():
        assert b" 200 " in await served.asked(context)


async def test_a_version_below_the_minimum_is_refused(served: Served, tmp_path: Path) -> None:
    served.settings = TlsSettings(
        served.settings.cert_file, served.settings.key_file, min_version="VersionTLS13"
    )
    context = served.client_context(tmp_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with served.run():
        with pytest.raises(trio.BrokenResourceError):
            await served.asked(context)


async def test_a_chosen_cipher_is_the_one_spoken(served: Served, tmp_path: Path) -> None:
    served.settings = TlsSettings(
        served.settings.cert_file,
        served.settings.key_file,
        cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"),
    )
    context = served.client_context(tmp_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with served.run():
        async with served.connect(context) as stream:
            assert b" 200 " in await ask(stream)
            cipher = stream.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


async def test_a_certificate_of_a_stranger_is_refused(served: Served, tmp_path: Path) -> None:
    context = served.client_context(tmp_path, Authority("other").sign("alice"))
    async with served.run():
        with pytest.raises(trio.BrokenResourceError):
            await served.asked(context)
        assert b" 200 " in await served.asked(served.client_context(tmp_path))


def changed(*paths: Path) -> None:
    """See to it that files that were just written look changed, however coarse their times are."""
    for path in paths:
        os.utime(path, (2**31, 2**31))


async def shown(served: Served, directory: Path) -> bytes | None:
    """Return the certificate that the server shows."""
    async with served.connect(served.client_context(directory)) as stream:
        await ask(stream)
        shown: bytes | None = stream.getpeercert(binary_form=True)
        return shown


async def test_new_certificates_are_served_without_a_restart(
    served: Served, tmp_path: Path
) -> None:
    async with served.run():
        before = await shown(served, tmp_path)
        changed(*served.authority.sign_server().write(tmp_path, "server"))
        assert await shown(served, tmp_path) != before


async def test_a_broken_certificate_leaves_the_one_before_it(
    served: Served, tmp_path: Path
) -> None:
    async with served.run():
        served.settings.cert_file.write_text("not a certificate")
        changed(served.settings.cert_file)
        assert b" 200 " in await served.asked(served.client_context(tmp_path))


async def test_an_issued_certificate_goes_before_the_given_one(
    served: Served, tmp_path: Path
) -> None:
    issued = tmp_path / "issued.pem"
    served.settings = dataclasses.replace(served.settings, issued=issued)
    async with served.run():
        given = await shown(served, tmp_path)
        put_in_one(served, issued)
        assert await shown(served, tmp_path) != given


async def test_before_a_certificate_is_issued_nobody_gets_through(
    served: Served, tmp_path: Path
) -> None:
    issued = tmp_path / "issued.pem"
    served.settings = dataclasses.replace(
        served.settings, cert_file=issued, key_file=issued, issued=issued
    )
    async with served.run():
        with pytest.raises(trio.BrokenResourceError):
            await served.asked(served.client_context(tmp_path))
        put_in_one(served, issued)
        assert b" 200 " in await served.asked(served.client_context(tmp_path))


async def test_a_broken_issued_certificate_is_none(served: Served, tmp_path: Path) -> None:
    issued = tmp_path / "issued.pem"
    issued.write_text("not a certificate")
    served.settings = dataclasses.replace(served.settings, issued=issued)
    async with served.run():
        assert b" 200 " in await served.asked(served.client_context(tmp_path))
        put_in_one(served, issued)
        changed(issued)
        assert b" 200 " in await served.asked(served.client_context(tmp_path))


def put_in_one(served: Served, issued: Path) -> None:
    """Write another certificate and its key as one file."""
    directory = issued.parent / "one"
    directory.mkdir()
    pair = served.authority.sign_server().write(directory, "server")
    issued.write_bytes(b"".join(path.read_bytes() for path in pair))


async def test_a_client_ca_that_changes_ends_what_it_let_in(served: Served, tmp_path: Path) -> None:
    context = served.client_context(tmp_path, served.authority.sign("alice"))
    async with served.run():
        async with served.connect(context) as stream:
            assert b"alice" in await ask(stream, last=False)
            served.client_ca.write_bytes(Authority("next").pem)
            changed(served.client_ca)
            with pytest.raises(trio.BrokenResourceError):
                await served.asked(context)  # the new CA does not know alice
            assert await ask(stream) == b""
        assert b" 200 " in await served.asked(served.client_context(tmp_path))


async def test_a_handshake_that_outlasts_its_client_ca_lets_nobody_in(
    served: Served, tmp_path: Path
) -> None:
    context = served.client_context(tmp_path, served.authority.sign("alice"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    async with served.run(), await trio.open_tcp_stream("127.0.0.1", served.port) as stream:
        # All but the client's last flight: the server has chosen the CA to check it against.
        while not outgoing.pending or incoming.pending == 0:
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            await stream.send_all(outgoing.read())
            incoming.write(bytes(await stream.receive_some()))
        served.client_ca.write_bytes(Authority("next").pem)
        changed(served.client_ca)
        assert b" 200 " in await served.asked(served.client_context(tmp_path))
        tls.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await stream.send_all(outgoing.read())
        with contextlib.suppress(trio.BrokenResourceError):
            while data := await stream.receive_some():
                incoming.write(bytes(data))
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            assert b"HTTP" not in tls.read()


async def test_clients_that_shake_no_hands_hold_nobody_up(served: Served, tmp_path: Path) -> None:
    async with served.run(Limits(secure_seconds=_LIMIT)):
        async with (
            await trio.open_tcp_stream("127.0.0.1", served.port),
            await trio.open_tcp_stream("127.0.0.1", served.port) as rude,
        ):
            await rude.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b" 200 " in await served.asked(served.client_context(tmp_path))


async def test_a_client_that_shakes_no_hands_is_let_go(served: Served) -> None:
    async with served.run(Limits(secure_seconds=0.05)):
        async with await trio.open_tcp_stream("127.0.0.1", served.port) as silent:
            with contextlib.suppress(trio.BrokenResourceError):
                assert await silent.receive_some() == b""


async def test_two_hundred_clients_are_served_at_the_same_time(
    served: Served, tmp_path: Path
) -> None:
    context = served.client_context(tmp_path)
    answers: list[bytes] = []
    async with served.run(Limits(connections=200, secure_seconds=_LIMIT)):

        async def client() -> None:
            async with served.connect(context) as stream:
                answers.extend([await ask(stream, last=False) for _ in range(3)])
                await all_connected.arrive()

        all_connected = Gathering(200)
        async with trio.open_nursery() as clients:
            for _ in range(200):
                clients.start_soon(client)
    assert len(answers) == 600
    assert all(b" 200 " in answer for answer in answers)


class Gathering:
    """Holds everybody until all have come."""

    def __init__(self, wanted: int) -> None:
        self._left = wanted
        self._complete = trio.Event()

    async def arrive(self) -> None:
        self._left -= 1
        if not self._left:
            self._complete.set()
        await self._complete.wait()


async def test_what_cannot_be_loaded_is_named(served: Served) -> None:
    served.settings.key_file.unlink()
    with pytest.raises(TlsError, match=r"server\.crt with .*server\.key"):
        await ServerTls(served.settings, thread_offload).load()
    assert served.settings.client_ca_file is not None
    served.settings.client_ca_file.write_text("nothing")
    served.authority.sign_server().write(served.settings.key_file.parent, "server")
    with pytest.raises(TlsError, match=r"client-ca\.crt"):
        await ServerTls(served.settings, thread_offload).load()


async def test_a_node_without_a_certificate_makes_one_and_keeps_it(tmp_path: Path) -> None:
    directory = tmp_path / "pki"
    cert_file, key_file = await thread_offload(
        ensure_self_signed, directory, "node1", ("127.0.0.1", "::1")
    )
    assert key_file.stat().st_mode & 0o777 == 0o600
    context = ssl.create_default_context(cafile=str(cert_file))
    made = cert_file.read_bytes()
    tls = ServerTls(TlsSettings(cert_file, key_file), thread_offload)
    await tls.load()
    listeners = await open_tcp("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serve_http(who, listeners, secure=tls.secure))
        with trio.fail_after(_LIMIT):
            stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context)
            assert b" 200 " in await ask(stream)
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
    await thread_offload(ensure_self_signed, directory, "other", ())
    assert cert_file.read_bytes() == made
