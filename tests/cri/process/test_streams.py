"""Talking to processes: commands with input, terminals, attaching, and logs that are rotated."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.cri.process import ProcessStreams
from tests.conformance.cases import FOREVER, Box, Program, exits
from tests.cri.process.conftest import ProcessCase

ECHO = Program('while read line; do echo "got $line"; done; echo over')


async def read_until(streams: ProcessStreams, end: bytes) -> bytes:
    """Return what a process writes up to the words that end it."""
    received = b""
    with trio.fail_after(10):
        while end not in received:
            output = await streams.receive()
            assert output is not None, received
            received += output.content
    return received


async def read_all(streams: ProcessStreams) -> dict[str, bytes]:
    received = {"stdout": b"", "stderr": b""}
    with trio.fail_after(10):
        async for stream, content in streams:
            received[stream] += content
    return received


async def test_a_command_reads_its_input_to_the_end(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER)
    async with case.runtime.open_exec(container_id, ["cat"], stdin=True) as cat:
        content = bytes(range(256)) * 4096
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                await cat.send_stdin(content)
                await cat.end_stdin()

            nursery.start_soon(write)
            received = await read_all(cat)
    assert received == {"stdout": content, "stderr": b""}
    assert cat.exit_code == 0


async def test_a_command_has_its_streams_apart_and_its_exit_code(
    case: ProcessCase, box: Box
) -> None:
    container_id = await box.start(FOREVER)
    command = ["sh", "-c", "echo out; echo err >&2; kill -9 $$"]
    async with case.runtime.open_exec(container_id, command) as process:
        assert await read_all(process) == {"stdout": b"out\n", "stderr": b"err\n"}
    assert process.exit_code == 137


async def test_a_command_without_input_reads_the_end(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER)
    assert (await case.runtime.exec_sync(container_id, ["cat"], 10)).exit_code == 0


async def test_a_command_may_have_a_terminal_of_a_size(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER)
    command = ["sh", "-c", "tty; read line; stty size; echo $TERM; exit 3"]
    async with case.runtime.open_exec(container_id, command, tty=True, stdin=True) as shell:
        assert (await read_until(shell, b"\n")).startswith(b"/dev/pts/")
        await shell.resize(40, 132)
        await shell.send_stdin(b"go\n")
        # Of which kind, whatever the container has: programs ask terminfo.
        assert b"40 132\r\nxterm\r\n" in (await read_all(shell))["stdout"]
    assert shell.exit_code == 3


async def test_a_command_that_cannot_be_started_says_so(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER)
    with pytest.raises(RuntimeCallError, match='exec: "nothing": executable file not found'):
        async with case.runtime.open_exec(container_id, ["nothing"]):
            pass


async def test_a_container_may_be_attached_to(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(ECHO, stdin=True)
    async with (
        case.runtime.open_attach(container_id) as first,
        case.runtime.open_attach(container_id) as second,
    ):
        await first.send_stdin(b"one\n")
        assert await read_until(first, b"\n") == b"got one\n"
        assert await read_until(second, b"\n") == b"got one\n"
    # Leaving ends neither the container nor its input.
    async with case.runtime.open_attach(container_id) as third:
        await third.send_stdin(b"two\n")
        assert await read_until(third, b"\n") == b"got two\n"
    await case.runtime.stop_container(container_id, 0)
    assert await box.log_of(container_id) == [b"stdout F got one", b"stdout F got two"]


async def test_input_that_is_for_once_ends_with_its_first_client(
    case: ProcessCase, box: Box
) -> None:
    container_id = await box.start(ECHO, stdin=True, stdin_once=True)
    async with case.runtime.open_attach(container_id) as client:
        await client.send_stdin(b"one\n")
        await read_until(client, b"one\n")
    assert await box.log_of(container_id) == [b"stdout F got one", b"stdout F over"]


async def test_an_attached_client_is_told_of_the_end(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(Program("read line; exit 6"), stdin=True)
    async with case.runtime.open_attach(container_id) as client:
        await client.send_stdin(b"go\n")
        await read_all(client)
    assert client.exit_code == 6


async def test_a_container_may_have_a_terminal(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(Program("tty; read x; echo $x; stty size"), tty=True, stdin=True)
    async with case.runtime.open_attach(container_id) as client:
        await client.resize(10, 20)
        await client.send_stdin(b"typed\n")
        await read_all(client)
    log = b"\n".join(await box.log_of(container_id))
    assert b"stdout F /dev/pts/" in log
    assert b"typed" in log
    assert b"10 20" in log


async def test_input_that_is_not_taken_at_once_is_kept(case: ProcessCase, box: Box) -> None:
    slow = Program("sleep 0.3; head -c 1300000 | wc -c")
    container_id = await box.start(slow, stdin=True)
    async with case.runtime.open_attach(container_id) as client:
        with trio.fail_after(10):
            await client.send_stdin(b"x" * 1_300_000)
            assert await read_until(client, b"\n") == b"1300000\n"
    another = await box.start(FOREVER, "another")
    async with case.runtime.open_exec(another, slow.command, stdin=True) as command:
        with trio.fail_after(10):
            await command.send_stdin(b"x" * 1_300_000)
            assert await read_until(command, b"\n") == b"1300000\n"


async def test_a_client_that_reads_nothing_does_not_hold_up_the_container(
    case: ProcessCase, box: Box
) -> None:
    container_id = await box.start(
        Program("read x; head -c 5000000 /dev/zero; echo; echo done"), stdin=True
    )
    async with case.runtime.open_attach(container_id) as client:
        await client.send_stdin(b"go\n")
        assert (await box.log_of(container_id))[-1] == b"stdout F done"


async def test_a_rotated_log_is_continued_in_a_new_file(
    case: ProcessCase, box: Box, tmp_path: Path
) -> None:
    container_id = await box.start(ECHO, stdin=True)
    log = Path((await case.runtime.container_status(container_id))[0].log_path)
    async with case.runtime.open_attach(container_id) as client:
        await client.send_stdin(b"before\n")
        await read_until(client, b"before\n")
        log.rename(tmp_path / "rotated")
        await case.runtime.reopen_container_log(container_id)
        await client.send_stdin(b"after\n")
        await read_until(client, b"after\n")
    assert (tmp_path / "rotated").read_bytes().endswith(b" stdout F got before\n")
    assert log.read_bytes().endswith(b" stdout F got after\n")
    assert log.stat().st_mode & 0o777 == 0o640


async def test_a_log_that_cannot_be_reopened_is_an_error_and_goes_on(
    case: ProcessCase, box: Box, tmp_path: Path
) -> None:
    container_id = await box.start(ECHO, stdin=True)
    log = Path((await case.runtime.container_status(container_id))[0].log_path)
    log.rename(tmp_path / "rotated")
    log.mkdir()
    with pytest.raises(RuntimeCallError, match="directory"):
        await case.runtime.reopen_container_log(container_id)
    async with case.runtime.open_attach(container_id) as client:
        await client.send_stdin(b"still\n")
        await read_until(client, b"still\n")
    assert (tmp_path / "rotated").read_bytes().endswith(b" stdout F got still\n")


async def test_nothing_can_be_asked_of_what_does_not_run(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(exits(0))
    await case.wait_exited(container_id)
    with pytest.raises(RuntimeCallError, match="is not running"):
        await case.runtime.reopen_container_log(container_id)
    with pytest.raises(RuntimeCallError, match="is not running"):
        async with case.runtime.open_attach(container_id):
            pass
    with pytest.raises(RuntimeCallError, match="is not running"):
        await case.runtime.container_stats(container_id)


async def test_input_and_sizes_may_be_told_at_once(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER)
    content = b"x" * 1000 + b"\n"
    async with (
        case.runtime.open_exec(container_id, ["cat"], tty=True, stdin=True) as cat,
        trio.open_nursery() as nursery,
    ):
        for number in range(1, 20):
            nursery.start_soon(cat.send_stdin, content)
            nursery.start_soon(cat.resize, number, number)
        nursery.start_soon(cat.send_stdin, b"over\n")
        await read_until(cat, b"over")


async def test_leaving_a_command_that_takes_no_input_kills_it(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER)
    async with case.runtime.open_exec(container_id, ["sleep", "1000"], stdin=True) as sleep:
        with trio.move_on_after(0.1) as cut:
            await sleep.send_stdin(bytes(16 << 20))  # more than all buffers on the way hold
        assert cut.cancelled_caught
    # `no_process_is_left` looks for it; leaving has waited until it was dead
    assert sleep.exit_code is None


async def test_a_command_whose_input_is_full_is_killed_at_once(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER)
    command = ["sh", "-c", "echo $$; exec sleep 1000"]
    async with case.runtime.open_exec(container_id, command, stdin=True) as sleep:
        pid = int(await read_until(sleep, b"\n"))
        with trio.move_on_after(0.1):
            await sleep.send_stdin(bytes(4 << 20))
        began = trio.current_time()
    assert trio.current_time() - began < 5
    assert not Path(f"/proc/{pid}").exists()
    assert (await case.runtime.container_status(container_id))[0].finished_at == 0


async def test_ports_are_those_of_the_host(case: ProcessCase, box: Box) -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with listener:
        async with await case.runtime.open_port(box.id, port) as client:
            async with await listener.accept() as server:
                await server.send_all(b"hello")
                assert await client.receive_some() == b"hello"
    with pytest.raises(OSError, match="connect"):
        await case.runtime.open_port(box.id, port)
    await case.runtime.stop_pod_sandbox(box.id)
    with pytest.raises(RuntimeCallError, match="is not running"):
        await case.runtime.open_port(box.id, port)
