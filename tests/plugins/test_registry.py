"""Registration on real sockets, in virtual time: the plugin and the agent share the event loop."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from kubelet_trio.model import inline_offload
from kubelet_trio.plugins import PluginHandler, PluginRegistry
from kubelet_trio.plugins.generated.pluginregistration import InfoRequest, PluginInfo
from kubelet_trio.supervision import Supervisor, TreeNode
from tests.plugins.fakes import CSI, FakeHandler, FakePlugin


class Running:
    """A registry that runs, with a handler for CSI."""

    def __init__(self, root: Path, **handlers: PluginHandler) -> None:
        self.root = root
        self.handler = FakeHandler()
        self.handlers: dict[str, PluginHandler] = {CSI: self.handler, **handlers}
        self.registry = PluginRegistry(root, self.handlers.get, offload=inline_offload)
        self.supervisor = Supervisor("plugins", self.registry.children())
        self.crashes: list[str] = []

    def plugin(self, socket: str = "disk.sock", **what: Any) -> FakePlugin:
        return replace(FakePlugin(self.root / socket), **what)

    def tree(self) -> dict[str, TreeNode]:
        """Return the nodes of the sockets, by name."""
        (sockets, _watch) = self.supervisor.tree().children
        return {node.name: node for node in sockets.children}

    async def wait_tree(self, *names: str) -> None:
        """Wait until just these sockets have a child."""
        await eventually(lambda: sorted(self.tree()) == sorted(names))

    async def wait_note(self, name: str, part: str) -> None:
        """Wait until the tree says this of a socket."""
        await eventually(lambda: part in self.tree()[name].note)


def two_of_a_name(run: Running, kind: str = CSI) -> tuple[FakePlugin, FakePlugin]:
    """Return two plugins with one name; the newer is the one that is served later."""
    old = run.plugin("old.sock", type=kind, endpoint="/old")
    return old, run.plugin("new.sock", type=kind, endpoint="/new")


async def eventually(is_true: Callable[[], bool]) -> None:
    """Wait until something is so: virtual time passes meanwhile."""
    for _ in range(1000):
        if is_true():
            return
        await trio.sleep(0.05)
    raise AssertionError("not within 50 s")


async def serve(plugin: FakePlugin, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """Serve a plugin until its scope is cancelled."""
    with trio.CancelScope() as scope:
        async with plugin.serving():
            task_status.started(scope)
            await trio.sleep_forever()


@pytest.fixture
async def running(short_path: Path, autojump_clock: MockClock) -> AsyncIterator[Running]:
    run = Running(short_path / "plugins_registry")
    async with run_registry(run):
        yield run


@asynccontextmanager
async def run_registry(run: Running) -> AsyncIterator[None]:
    with trio.fail_after(1000):  # of virtual time
        async with trio.open_nursery() as nursery:
            await nursery.start(run.supervisor.run)
            yield
            nursery.cancel_scope.cancel()


async def test_a_plugin_is_registered_and_told_so(
    autojump_clock: MockClock, running: Running
) -> None:
    await running.wait_tree()
    assert running.root.stat().st_mode & 0o777 == 0o750
    plugin = running.plugin()
    async with plugin.serving():
        assert await plugin.wait_told() == (True, "")
        assert running.handler.registered == [(plugin.name, plugin.endpoint)]
        await running.wait_note("disk.sock", "CSIPlugin disk.example.com: registered")
        assert set(running.registry.totals()) == {
            (str(plugin.path), "actual_state_of_world"),
            (str(plugin.path), "desired_state_of_world"),
        }
    await running.handler.wait_registered()
    await running.wait_tree()
    assert list(running.registry.totals()) == []
    assert plugin.told == [(True, "")]


async def test_plugins_of_before_the_start_and_in_subdirectories_are_found(
    short_path: Path, autojump_clock: MockClock
) -> None:
    run = Running(short_path / "plugins_registry")
    (run.root / "vendor").mkdir(parents=True)
    early = run.plugin("vendor/early.sock", name="early", endpoint="/early")
    async with early.serving(), run_registry(run):
        await early.wait_told()
        # A directory made later is watched too.
        (run.root / "other" / "deep").mkdir(parents=True)
        late = run.plugin("other/deep/late.sock", name="late", endpoint="/late")
        async with late.serving():
            await late.wait_told()
            assert sorted(run.tree()) == ["other/deep/late.sock", "vendor/early.sock"]
            assert sorted(run.handler.registered) == [("early", "/early"), ("late", "/late")]


async def test_without_an_endpoint_the_registration_socket_serves_all(
    autojump_clock: MockClock, running: Running
) -> None:
    plugin = running.plugin(endpoint="")
    async with plugin.serving():
        await plugin.wait_told()
        assert running.handler.registered == [(plugin.name, str(plugin.path))]


async def test_only_sockets_with_visible_names_count(
    autojump_clock: MockClock, running: Running
) -> None:
    await running.wait_tree()
    (running.root / "file.sock").touch()
    os.mkfifo(running.root / "fifo.sock")
    hidden = running.plugin(".hidden.sock")
    inside = running.plugin(".directory/inside.sock", name="inside")
    inside.path.parent.mkdir()
    plugin, elsewhere = running.plugin(), running.plugin("../elsewhere.sock", name="elsewhere")
    async with hidden.serving(), inside.serving(), elsewhere.serving(), plugin.serving():
        (running.root / "link.sock").symlink_to(elsewhere.path)
        (running.root / "links").symlink_to(running.root / ".directory")
        await plugin.wait_told()
        await trio.sleep(100)
        assert list(running.tree()) == ["disk.sock"]
        assert hidden.asked == inside.asked == elsewhere.asked == 0


@pytest.mark.parametrize("kind", ["DevicePlugin", "DRAPlugin", "", "Else\n"])
async def test_a_type_without_a_handler_is_refused_by_name(
    autojump_clock: MockClock, running: Running, kind: str
) -> None:
    plugin = running.plugin(type=kind)
    async with plugin.serving():
        is_registered, error = await plugin.wait_told()
        assert not is_registered
        assert error == (
            "RegisterPlugin error -- no handler registered for plugin type: "
            f"{kind!r} at socket {plugin.path}"
        )
        assert running.handler.history == []


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ({"name": ""}, "invalid plugin name ''"),
        ({"name": "../../etc"}, "invalid plugin name '../../etc'"),
        ({"name": "a" * 300}, "invalid plugin name 'aaaa"),
        ({"endpoint": "csi.sock"}, "endpoint 'csi.sock' is not an absolute path"),
        ({"endpoint": "unix:///csi.sock"}, "is not an absolute path"),
        ({"endpoint": "/" + "a" * 107}, "is longer than 107 bytes"),
        ({"versions": ["1.0.0"] * 65}, "65 supported versions, more than 64"),
        ({"versions": ["1.0.0\n"]}, "invalid supported version"),
    ],
)
async def test_what_a_plugin_says_is_checked(
    autojump_clock: MockClock, running: Running, what: dict[str, Any], error: str
) -> None:
    plugin = running.plugin(**what)
    async with plugin.serving():
        is_registered, told = await plugin.wait_told()
        assert not is_registered
        assert told.startswith("RegisterPlugin error -- plugin validation failed with err: ")
        assert error in told
        assert len(told) < 500
        assert running.handler.history == []


async def test_a_refused_plugin_is_tried_again_with_growing_delays(
    autojump_clock: MockClock, running: Running
) -> None:
    running.handler.refusal = "only version 2"
    plugin = running.plugin()
    times = []
    with structlog.testing.capture_logs() as logs:
        async with plugin.serving():
            for count in range(1, 13):
                assert await plugin.wait_told(count) == (
                    False,
                    "RegisterPlugin error -- plugin validation failed with err: only version 2",
                )
                times.append(trio.current_time())
            delays = [after - before for before, after in itertools.pairwise(times)]
            assert [round(delay, 1) for delay in delays[:4]] == [0.5, 1, 2, 4]
            assert max(delays) == pytest.approx(122, abs=0.5)
            running.handler.refusal = ""
            assert await plugin.wait_told(13) == (True, "")
    problems = [entry for entry in logs if entry["event"] == "plugin.not_registered"]
    assert len(problems) == 1


async def test_a_handler_that_fails_is_told_to_the_plugin(
    autojump_clock: MockClock, running: Running
) -> None:
    running.handler.failure = "rpc error: code = Unavailable"
    plugin = running.plugin()
    async with plugin.serving():
        assert await plugin.wait_told() == (
            False,
            "RegisterPlugin error -- plugin registration failed with err: "
            "rpc error: code = Unavailable",
        )
        running.handler.failure = ""
        assert await plugin.wait_told(2) == (True, "")


async def test_a_plugin_that_cannot_be_told_is_not_registered(
    autojump_clock: MockClock, running: Running
) -> None:
    plugin = running.plugin(refuses_status=True)
    async with plugin.serving():
        await plugin.wait_told(2)
        await running.handler.wait_registered()
        assert running.handler.history[:2] == [f"+{plugin.endpoint}", f"-{plugin.endpoint}"]
        plugin.refuses_status = False
        await running.wait_note("disk.sock", ": registered")
        assert running.handler.registered == [(plugin.name, plugin.endpoint)]


async def test_a_handler_that_breaks_later_registers_again(
    autojump_clock: MockClock, running: Running
) -> None:
    plugin = running.plugin()
    async with plugin.serving():
        await plugin.wait_told()
        running.handler.breaks.set()
        running.handler.breaks = trio.Event()
        await plugin.wait_told(2)
        assert plugin.told == [(True, ""), (True, "")]
        assert running.tree()["disk.sock"].restarts == 0  # an expected failure: no crash


async def test_a_bug_of_a_handler_restarts_its_child_only(
    autojump_clock: MockClock, running: Running
) -> None:
    running.handler.errors = (ValueError,)  # type: ignore[assignment]  # so the failure is a bug
    running.handler.failure = "a bug"
    good = running.plugin("good.sock", name="good", endpoint="/good")
    bad = running.plugin("bad.sock", name="bad")
    async with bad.serving():
        await bad.wait_asked(3)
        assert running.tree()["bad.sock"].restarts >= 1
        running.handler.failure = ""
        async with good.serving():
            await good.wait_told()
            await bad.wait_told()
            assert ("good", "/good") in running.handler.registered


async def test_a_replaced_socket_registers_again(
    autojump_clock: MockClock, running: Running
) -> None:
    old = running.plugin(endpoint="/old")
    async with old.serving():
        await old.wait_told()
        new = running.plugin(endpoint="/new")
        async with new.serving():  # unlinks the old one's socket first
            await new.wait_told()
            await running.handler.wait_registered("/new")
    # One after the other: the old one ended before the new one was asked.
    assert running.handler.history[:3] == ["+/old", "-/old", "+/new"]


async def test_a_newer_socket_takes_a_name_over(
    autojump_clock: MockClock, running: Running
) -> None:
    old, new = two_of_a_name(running)
    async with old.serving():
        await old.wait_told()
        async with new.serving():
            await new.wait_told()
            await running.handler.wait_registered("/new")
            # The newer was registered before the older ended: the name was never without one.
            assert running.handler.history == ["+/old", "+/new", "-/old"]
            assert "replaced by a newer socket" in running.tree()["old.sock"].note
            await trio.sleep(500)
            assert running.handler.history == ["+/old", "+/new", "-/old"]
        # The newer is gone, and the older still there: it has the name again.
        await running.handler.wait_registered("/old")
        assert await old.wait_told(2) == (True, "")


async def test_the_end_of_a_replaced_socket_leaves_the_newer_alone(
    autojump_clock: MockClock, running: Running
) -> None:
    old, new = two_of_a_name(running)
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(serve, old)
        await old.wait_told()
        async with new.serving():
            await new.wait_told()
            scope.cancel()
            await running.wait_tree("new.sock")
            assert running.handler.registered == [(new.name, "/new")]


async def test_of_two_sockets_at_the_start_the_newer_has_the_name(
    short_path: Path, autojump_clock: MockClock
) -> None:
    run = Running(short_path / "plugins_registry")
    run.root.mkdir()
    old, new = run.plugin("z.sock", endpoint="/old"), run.plugin("a.sock", endpoint="/new")
    async with old.serving(), new.serving():
        os.utime(old.path, ns=(0, 10**18))
        async with run_registry(run):
            await new.wait_told()
            await trio.sleep(100)
            assert run.handler.registered == [(new.name, "/new")]
            # The older is not told that it failed: its program would end, start again and
            # thereby have the newer socket.
            assert all(is_registered for is_registered, _ in old.told)


async def test_several_sockets_share_a_name_where_the_handler_allows_it(
    short_path: Path, autojump_clock: MockClock
) -> None:
    drivers = FakeHandler(is_exclusive=False)
    run = Running(short_path / "plugins_registry", DRAPlugin=drivers)
    async with run_registry(run):
        await run.wait_tree()
        old, new = two_of_a_name(run, "DRAPlugin")
        async with old.serving():
            await old.wait_told()
            async with new.serving():
                await new.wait_told()
                await drivers.wait_registered("/old", "/new")
            await drivers.wait_registered("/old")


async def test_a_refused_successor_registers_as_soon_as_the_name_is_free(
    autojump_clock: MockClock, running: Running
) -> None:
    old, new = two_of_a_name(running)
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(serve, old)
        await old.wait_told()
        # As the CSI handler, which wants a higher version of a successor.
        running.handler.refusal = "another driver with the same name is already registered"
        async with new.serving():
            await new.wait_told(8)
            running.handler.refusal = ""
            since = trio.current_time()
            scope.cancel()
            assert await new.wait_told(9) == (True, "")
            assert trio.current_time() - since < 1  # the next attempt was a minute away


async def test_a_plugin_that_hangs_delays_no_other(
    autojump_clock: MockClock, running: Running
) -> None:
    hanging = running.plugin("hanging.sock", name="hanging", hangs=True)
    async with hanging.serving():
        await hanging.wait_asked()
        plugin = running.plugin()
        began = trio.current_time()
        async with plugin.serving():
            await plugin.wait_told()
            assert trio.current_time() - began < 1
            await hanging.wait_asked(2)
            assert trio.current_time() - began < 6
            assert "GetInfo failed: DEADLINE_EXCEEDED" in running.tree()["hanging.sock"].note
            hanging.hangs = False
            await hanging.wait_told()


async def test_a_handler_that_hangs_delays_no_other_and_ends_with_its_socket(
    autojump_clock: MockClock,
    running: Running,
) -> None:
    running.handler.hangs = True
    hanging = running.plugin("hanging.sock", name="hanging")
    async with hanging.serving():
        await hanging.wait_asked()
        await trio.sleep(1)
        running.handler.hangs = False
        plugin = running.plugin()
        async with plugin.serving():
            await plugin.wait_told()
            assert hanging.told == []
    await running.wait_tree()


async def test_a_socket_that_nobody_serves_is_reported(
    autojump_clock: MockClock, running: Running
) -> None:
    await running.wait_tree()
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(running.root / "dead.sock"))
    with structlog.testing.capture_logs() as logs:
        await running.wait_tree("dead.sock")
        await trio.sleep(200)
    assert [entry["error"] for entry in logs if entry["event"] == "plugin.not_registered"] == [
        "no program serves the socket"
    ]
    assert running.handler.history == []


async def test_a_huge_answer_is_refused(autojump_clock: MockClock, running: Running) -> None:
    plugin = running.plugin()

    async def huge(_request: InfoRequest) -> PluginInfo:
        plugin.asked += 1
        return PluginInfo(type=CSI, name="x" * (1 << 20))

    plugin.get_info = huge  # type: ignore[method-assign,assignment]
    async with plugin.serving():
        await running.wait_tree("disk.sock")
        await trio.sleep(3)
        assert "GetInfo failed" in running.tree()["disk.sock"].note
        assert len(running.tree()["disk.sock"].note) < 400
        assert plugin.asked >= 2


async def test_a_plugin_that_talks_something_else_is_refused(
    autojump_clock: MockClock, running: Running
) -> None:
    await running.wait_tree()
    talk = b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100_000

    async def chatter(stream: trio.SocketStream) -> None:
        with trio.move_on_after(30):
            try:
                await stream.send_all(talk)
            except trio.BrokenResourceError:
                return  # the agent hung up

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(running.root / "chatter.sock"))
        listening.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, chatter, [listener])
            await running.wait_tree("chatter.sock")
            await trio.sleep(30)
            assert "GetInfo failed" in running.tree()["chatter.sock"].note
            nursery.cancel_scope.cancel()


async def test_a_flood_of_sockets_is_bounded_and_leaves_known_plugins_alone(
    autojump_clock: MockClock,
    running: Running,
) -> None:
    plugin = running.plugin("zzz.sock")
    async with plugin.serving():
        await plugin.wait_told()
        for number in range(400):
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(running.root / f"{number}.sock"))
        with structlog.testing.capture_logs() as logs:
            await trio.sleep(60)
        assert len(running.tree()) == 256
        assert running.handler.registered == [(plugin.name, plugin.endpoint)]
        problems = [entry["problem"] for entry in logs if entry["event"] == "plugins.registry"]
        assert problems == ["has more than 256 sockets; the rest is ignored"]


async def test_a_directory_that_is_removed_is_made_again(
    autojump_clock: MockClock, running: Running
) -> None:
    await running.wait_tree()
    running.root.rmdir()
    await eventually(running.root.exists)
    plugin = running.plugin()
    async with plugin.serving():
        await plugin.wait_told()


async def test_the_end_of_the_agent_ends_the_registrations(
    short_path: Path, autojump_clock: MockClock
) -> None:
    run = Running(short_path / "plugins_registry")
    run.root.mkdir()
    plugin = run.plugin()
    async with plugin.serving():
        async with run_registry(run):
            await plugin.wait_told()
        assert run.handler.registered == []
        assert plugin.told == [(True, "")]
