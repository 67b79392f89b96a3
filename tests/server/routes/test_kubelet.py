"""The routes of the kubelet API: shapes, status codes and parameters."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kubelet_trio.cri import ExecResult, RuntimeCallError
from kubelet_trio.model import ContainerState, PodUid, set_verbosity
from kubelet_trio.server import ApiOptions, ApiParts, HttpError, Request, Response, kubelet_router
from kubelet_trio.server.logs.container import read_query
from kubelet_trio.testing import FaultKind, TrioClock
from tests.server.access.test_authorization import ROUTES
from tests.server.fake_view import make_pod
from tests.server.node_view import FakeKubeletApiView, running_pod

Arguments = tuple[tuple[str, str], ...]
DISABLED = "Debug endpoints are disabled."


class Api:
    """The routes, asked as by somebody who may."""

    def __init__(
        self,
        view: FakeKubeletApiView,
        options: ApiOptions | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        async def summary(request: Request) -> Response:
            return Response(body=f"{request.method} summary".encode())

        self.view = view
        self.sick: str | None = None
        self.parts = ApiParts(
            view,
            TrioClock(),
            {"syncloop": lambda: self.sick, "pleg": lambda: None},
            options or ApiOptions(),
            configz=b'{"kind":"KubeletConfiguration"}',
            flags={"root-dir": "/var/lib/kubelet"},
            log_dirs=(view.root_dir,),
            plugged={"/stats/summary": summary},
        )
        self.router = kubelet_router(self.parts, read_only=read_only)

    async def ask(
        self,
        path: str,
        method: str = "GET",
        arguments: Arguments = (),
        body: bytes = b"",
        **headers: str,
    ) -> tuple[int, bytes]:
        request = Request(method, path, arguments, headers=headers, body=body)
        try:
            response = await self.router(request)
        except HttpError as exc:
            response = exc.response()
        if response.stream is None:
            return response.status, response.body
        sent = bytearray()

        async def send(data: bytes) -> None:
            sent.extend(data)

        await response.stream(send)
        return response.status, bytes(sent)


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return Api(FakeKubeletApiView(root_dir=tmp_path))


async def test_pods_are_a_list_with_their_status(api: Api) -> None:
    status, body = await api.ask("/pods")
    told = json.loads(body)
    assert (status, told["kind"], told["apiVersion"]) == (200, "PodList", "v1")
    [pod] = told["items"]
    assert pod["metadata"]["name"] == "web-node1"
    assert pod["status"]["phase"] == "Running"


async def test_no_pods_are_null_as_go_says_it(api: Api) -> None:
    api.view.drop("u1")
    _, body = await api.ask("/pods/")
    assert json.loads(body) == {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {},
        "items": None,
    }


async def test_running_pods_are_what_the_runtime_knows(api: Api) -> None:
    status, body = await api.ask("/runningpods/")
    assert status == 200
    assert json.loads(body)["items"] == [
        {
            "metadata": {
                "name": "web-node1",
                "namespace": "default",
                "uid": "u1",
                "creationTimestamp": None,
            },
            "spec": {"containers": [{"name": "web", "image": "nginx", "resources": {}}]},
            "status": {},
        }
    ]


async def test_health_is_the_sync_loops(api: Api) -> None:
    for path in ("/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"):
        assert await api.ask(path) == (200, b"ok")
    api.sick = "stuck"
    assert (await api.ask("/healthz"))[0] == 500
    assert (await api.ask("/healthz/syncloop"))[0] == 500
    assert (await api.ask("/healthz/ping"))[0] == 200
    assert (await api.ask("/healthz/pleg"))[0] == 404


async def test_the_configuration_is_shown_under_its_name(api: Api) -> None:
    _, body = await api.ask("/configz")
    assert json.loads(body) == {"kubeletconfig": {"kind": "KubeletConfiguration"}}


async def test_statistics_are_plugged_in_for_get_and_post(api: Api) -> None:
    assert await api.ask("/stats/summary") == (200, b"GET summary")
    assert await api.ask("/stats/summary", "POST") == (200, b"POST summary")


async def test_pages_for_people(api: Api) -> None:
    _, body = await api.ask("/statusz")
    assert b"kubelet statusz" in body
    assert b"/containerLogs" in body
    _, body = await api.ask("/flagz")
    assert b"root-dir=/var/lib/kubelet" in body


READ_ONLY = ["/healthz", "/pods", "/stats/summary"]
DEBUGGING = [
    ("POST", "/run/default/web-node1/web"),
    ("GET", "/exec/default/web-node1/web"),
    ("POST", "/exec/default/web-node1/web"),
    ("POST", "/attach/default/web-node1/web"),
    ("POST", "/portForward/default/web-node1"),
    ("GET", "/containerLogs/default/web-node1/web"),
    ("GET", "/runningpods/"),
    ("GET", "/logs/"),
    ("GET", "/logs/syslog"),
    ("GET", "/debug/pprof/"),
    ("GET", "/debug/pprof/cmdline"),
]


@pytest.mark.parametrize("read_only", [True, False])
async def test_without_debugging_only_what_was_always_there_is(
    tmp_path: Path, read_only: bool
) -> None:
    options = ApiOptions(enable_debugging_handlers=read_only)
    api = Api(FakeKubeletApiView(root_dir=tmp_path), options, read_only=read_only)
    for path in READ_ONLY:
        assert (await api.ask(path))[0] == 200
    for method, path in DEBUGGING:
        assert await api.ask(path, method) == (405, f"{DISABLED}\n".encode()), path
    for path in ("/configz", "/statusz", "/flagz", "/debug/flags/v"):
        assert (await api.ask(path))[0] == 404, path


@pytest.mark.parametrize(
    ("option", "path", "told"),
    [
        ("enable_profiling_handler", "/debug/pprof/cmdline", "profiling endpoint is disabled."),
        ("enable_debug_flags_handler", "/debug/flags/v", "flags endpoint is disabled."),
        ("enable_system_log_handler", "/logs/syslog", "logs endpoint is disabled."),
    ],
)
async def test_what_is_switched_off_says_so(
    tmp_path: Path, option: str, path: str, told: str
) -> None:
    api = Api(FakeKubeletApiView(root_dir=tmp_path), ApiOptions(**{option: False}))
    assert await api.ask(path) == (405, f"{told}\n".encode())


async def test_profiles_are_of_this_program(api: Api) -> None:
    assert b"goroutine" in (await api.ask("/debug/pprof/"))[1]
    assert b"test_profiles_are_of_this_program" in (await api.ask("/debug/tasks"))[1]
    assert (await api.ask("/debug/pprof/cmdline"))[0] == 200
    assert (await api.ask("/debug/pprof/block"))[0] == 404


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"4", 200, "successfully set klog.logging.verbosity to 4"),
        (b"-1", 200, "successfully set klog.logging.verbosity to -1"),
        (b"+6", 200, "successfully set klog.logging.verbosity to +6"),
        (b"", 400, 'failed set klog.logging.verbosity : strconv.ParseInt: parsing "": '),
        (b"x", 400, 'failed set klog.logging.verbosity x: strconv.ParseInt: parsing "x": '),
        (b"4 ", 400, 'failed set klog.logging.verbosity 4 : strconv.ParseInt: parsing "4 ": '),
        (b"2147483648", 400, "failed set klog.logging.verbosity 2147483648: "),
        (b"9" * 5000, 400, "failed set klog.logging.verbosity 9"),
        (b"\xff", 400, "failed set klog.logging.verbosity "),
    ],
)
async def test_the_verbosity_is_set_while_the_agent_runs(
    api: Api, body: bytes, status: int, told: str
) -> None:
    level = logging.getLogger().level
    try:
        answer = await api.ask("/debug/flags/v", "PUT", body=body)
        assert answer[0] == status
        assert answer[1].decode().startswith(told)
        if status == 200:
            wanted = logging.DEBUG if int(body) >= 6 else logging.WARNING
            assert logging.getLogger().level == wanted
    finally:
        set_verbosity(0)
        logging.getLogger().setLevel(level)
    assert await api.ask("/debug/flags/v") == (406, b"unsupported http method")


@pytest.mark.parametrize("path", ["/", "/pod", "/exec", "/exec/a", "/exec/a/b/c/d/e", "/metricz"])
async def test_what_is_not_there_is_404(api: Api, path: str) -> None:
    assert (await api.ask(path))[0] == 404


def test_every_route_is_in_the_table_of_who_may(api: Api) -> None:
    assert set(api.router.paths()) <= {f"/{path.split('/')[1]}" for path in ROUTES}


async def test_a_method_that_a_path_has_not_is_405(api: Api) -> None:
    with pytest.raises(HttpError) as caught:
        await api.router(Request("DELETE", "/pods"))
    assert (caught.value.status, caught.value.headers) == (405, (("Allow", "GET"),))
    assert caught.value.response().body == b"405: Method Not Allowed"  # go-restful's words


@given(
    method=st.sampled_from(["GET", "POST", "HEAD", "PUT"]),
    segments=st.lists(
        st.sampled_from(
            ["pods", "exec", "attach", "run", "logs", "default", "web-node1", "web", "u1", "..",
             "containerLogs", "portForward", "checkpoint", "", ".", "debug", "pprof", "a/b", "é"]
        ),
        max_size=6,
    ),
    arguments=st.lists(
        st.tuples(
            st.sampled_from(
                ["command", "cmd", "input", "output", "tty", "port", "follow", "tailLines",
                 "sinceTime", "limitBytes", "timeout", "stream"]
            ),
            st.text(max_size=8),
        ),
        max_size=4,
    ),
)  # fmt: skip
def test_no_request_makes_the_router_fail(
    method: str, segments: list[str], arguments: list[tuple[str, str]]
) -> None:
    async def main() -> int:
        api = Api(FakeKubeletApiView(root_dir=Path(__file__).parent))
        status, _ = await api.ask("/" + "/".join(segments), method, tuple(arguments))
        return status

    assert 200 <= trio.run(main, clock=MockClock(autojump_threshold=0)) < 600


# Logs


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"tailLines": "x"}, 400),
        ({"tailLines": ""}, 400),
        ({"tailLines": "1.5"}, 400),
        ({"limitBytes": "99999999999999999999"}, 400),
        ({"sinceTime": "yesterday"}, 400),
        ({"sinceTime": "2026-01-02T15:04:05"}, 400),
        ({"tailLines": "-1"}, 422),
        ({"limitBytes": "0"}, 422),
        ({"sinceSeconds": "0"}, 422),
        ({"sinceSeconds": "5", "sinceTime": "2026-01-02T15:04:05Z"}, 422),
        ({"stream": "Stdout"}, 400),
        ({"stream": "stderr"}, 400),
    ],
)
def test_a_query_that_is_refused(arguments: dict[str, str], status: int) -> None:
    with pytest.raises(HttpError) as caught:
        read_query(tuple(arguments.items()), 0.0)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("arguments", "streams"),
    [
        ({}, {"stdout", "stderr"}),
        ({"stream": ""}, {"stdout", "stderr"}),
        ({"stream": "All", "tailLines": "3"}, {"stdout", "stderr"}),
        ({"stream": "Stdout"}, {"stdout"}),
        ({"stream": "Stderr", "limitBytes": "9", "follow": "1"}, {"stderr"}),
        ({"stream": "stdout"}, None),
        ({"stream": "Both"}, None),
        ({"stream": "Stderr", "tailLines": "3"}, None),
    ],
)
def test_one_stream_where_that_is_switched_on(
    arguments: dict[str, str], streams: set[str] | None
) -> None:
    given = tuple(arguments.items())
    if streams is not None:
        assert read_query(given, 0.0, split_streams=True).options.streams == streams
        return
    with pytest.raises(HttpError) as caught:
        read_query(given, 0.0, split_streams=True)
    assert caught.value.status == 422


def test_a_query_that_is_read() -> None:
    arguments = {
        "follow": "",
        "previous": "false",
        "timestamps": "1",
        "tailLines": "5",
        "limitBytes": "10",
        "sinceSeconds": "60",
        "stream": "All",
        "insecureSkipTLSVerifyBackend": "true",
    }
    query = read_query(tuple(arguments.items()), 1000.0)
    assert (query.follow, query.previous) == (True, False)
    options = query.options
    assert (options.tail, options.limit, options.since, options.timestamps) == (5, 10, 940.0, True)
    assert read_query((("tail", "all"), ("tailLines", "3")), 0.0).options.tail is None
    assert read_query((("tail", "7"),), 0.0).options.tail == 7
    when = read_query((("sinceTime", "1970-01-01T00:01:00.5Z"),), 0.0).options.since
    assert when == 60.5


async def test_a_log_is_sent_as_it_was_written(api: Api, tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("2026-01-02T15:04:05.000000000Z stdout F hello\n")
    api.view.logs["c1"] = log
    assert await api.ask("/containerLogs/default/web-node1/web") == (200, b"hello\n")


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("default/none/web", 404, 'pod "none" does not exist'),
        ("other/web-node1/web", 404, 'pod "web-node1" does not exist'),
        ("default/web/web", 404, 'pod "web" does not exist'),
        ("default/web-node1/x", 404, 'container "x" not found in pod "web-node1"'),
    ],
)
async def test_a_log_that_nobody_has(api: Api, path: str, status: int, told: str) -> None:
    assert await api.ask(f"/containerLogs/{path}") == (status, told.encode())


async def test_a_log_of_an_instance_that_never_was_is_400(api: Api) -> None:
    status, body = await api.ask(
        "/containerLogs/default/web-node1/web", arguments=(("previous", "true"),)
    )
    # Without a newline: API servers pass the text on as the message of a Status.
    told = b'previous terminated container "web" in pod "web-node1" not found'
    assert (status, body) == (400, told)


# The host's logs


async def test_the_hosts_logs_are_files_and_listings(api: Api, tmp_path: Path) -> None:
    (tmp_path / "syslog").write_text("line\n")
    (tmp_path / "apt & co").mkdir()
    status, body = await api.ask("/logs/")
    assert status == 200
    assert b'<a href="./syslog">syslog</a>' in body
    assert b'<a href="./apt%20%26%20co/">apt &amp; co/</a>' in body
    assert await api.ask("/logs/syslog") == (200, b"line\n")
    assert (await api.ask("/logs/none"))[0] == 404
    assert (await api.ask("/logs/syslog/x"))[0] == 404
    assert (await api.ask("/logs/../x"))[0] == 400
    assert (await api.ask("/logs/nul\0"))[0] == 500


async def test_a_link_out_of_the_hosts_logs_leads_nowhere(api: Api, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("/etc")
    (tmp_path / "file").write_text("in")
    (tmp_path / "in").symlink_to(tmp_path / "file")
    assert (await api.ask("/logs/out"))[0] == 404
    assert (await api.ask("/logs/up/passwd"))[0] == 404
    assert await api.ask("/logs/in") == (200, b"in")


async def test_a_pipe_among_the_hosts_logs_holds_nobody_up(api: Api, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert (await api.ask("/logs/pipe"))[0] == 404


async def test_a_log_that_nobody_reads_leaves_nothing_open(api: Api, tmp_path: Path) -> None:
    (tmp_path / "syslog").write_text("line\n")
    before = len(os.listdir("/proc/self/fd"))
    # As for HEAD, or for a client that has gone before the body.
    answers = [await api.router(Request("GET", "/logs/syslog")) for _ in range(20)]
    assert len(answers) == 20
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_page_among_the_hosts_logs_is_not_run(api: Api, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text("<script>alert(1)</script>")
    headers = dict((await api.router(Request("GET", "/logs/x.html"))).headers)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in headers["Content-Security-Policy"]


# Numbers of strangers

NUMBERS = [
    ("GET", "/containerLogs/default/web-node1/web", "tailLines"),
    ("GET", "/containerLogs/default/web-node1/web", "limitBytes"),
    ("GET", "/containerLogs/default/web-node1/web", "sinceSeconds"),
    ("POST", "/checkpoint/default/web-node1/web", "timeout"),
    ("GET", "/portForward/default/web-node1", "port"),
]


@pytest.mark.parametrize(("method", "path", "name"), NUMBERS)
@pytest.mark.parametrize("text", ["1" * 5000, "-" + "9" * 20, "1_0", "\u0661", "0x1", "+", ""])
async def test_a_number_that_is_none_is_a_refusal(
    api: Api, method: str, path: str, name: str, text: str
) -> None:
    upgrade = "websocket" if name == "port" else ""
    status, _ = await api.ask(path, method, ((name, text),), upgrade=upgrade)
    assert 400 <= status < 500


# Run and checkpoint


async def test_a_command_is_split_at_its_spaces_and_answers_with_its_output(api: Api) -> None:
    seen: list[list[str]] = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.view.fake_runtime, "exec_sync", _answering(seen, b"out", b"err", 0))
        answer = await api.ask("/run/default/web-node1/web", "POST", (("cmd", "ls -l /"),))
    assert answer == (200, b"outerr")
    assert seen == [["ls", "-l", "/"]]


def _answering(seen: list[list[str]], out: bytes, err: bytes, code: int) -> object:
    async def exec_sync(_: str, command: list[str], seconds: int) -> ExecResult:
        seen.append(command)
        await trio.lowlevel.checkpoint()
        return ExecResult(out, err, code)

    return exec_sync


async def test_a_command_that_fails_says_how(api: Api) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.view.fake_runtime, "exec_sync", _answering([], b"", b"no", 3))
        answer = await api.ask("/run/default/web-node1/u1/web", "POST", (("cmd", "x"),))
    assert answer == (500, b"command 'x' exited with 3: no")


async def test_who_does_not_run_is_not_found(api: Api) -> None:
    api.view.seen["u1"] = running_pod(PodUid("u1"), ContainerState.EXITED)
    assert await api.ask("/run/default/web-node1/web", "POST") == (
        500,
        b'container not found ("web")',
    )
    assert await api.ask("/run/default/none/web", "POST") == (404, b"pod does not exist")


async def test_a_checkpoint_is_named_after_what_it_is_of(api: Api) -> None:
    status, body = await api.ask("/checkpoint/default/web-node1/web", "POST")
    [archive] = json.loads(body)["items"]
    assert status == 200
    assert archive.startswith(f"{api.view.root_dir}/checkpoints/checkpoint-web-node1_default-web-")
    assert list(api.view.fake_runtime.checkpoints.values()) == [archive]


async def test_checkpoints_that_cannot_be(api: Api) -> None:
    path = "/checkpoint/default/web-node1"
    assert (await api.ask(f"{path}/x", "POST")) == (404, b"container x does not exist")
    assert (await api.ask(f"{path}/web", "POST", (("timeout", "soon"),)))[0] == 404
    no_criu = RuntimeCallError("CheckpointContainer", "no criu")
    api.view.fake_runtime.faults.add(FaultKind.ERROR, "CheckpointContainer", error=no_criu)
    assert await api.ask(f"{path}/web", "POST") == (
        500,
        b"checkpointing of default/web-node1/web failed (no criu)",
    )


async def test_without_its_gate_nothing_is_checkpointed(tmp_path: Path) -> None:
    api = Api(FakeKubeletApiView(root_dir=tmp_path), ApiOptions(checkpoints=False))
    assert (await api.ask("/checkpoint/default/web-node1/web", "POST"))[0] == 404
    assert not api.view.fake_runtime.checkpoints


async def test_two_pods_of_one_name_are_told_apart_by_who_stays(api: Api) -> None:
    api.view.put(make_pod(uid="u2", metadata={
        "name": "web-node1", "namespace": "default", "uid": "u2",
        "deletionTimestamp": "2026-01-02T15:04:05Z",
    }))  # fmt: skip
    assert (await api.ask("/run/default/web-node1/u2/web", "POST"))[0] == 500


async def test_the_command_line_is_shown_without_secrets(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--manifest-url-header=A:one", "--manifest_url_header", "A:two", "--v=2"]
    words.append("--storage-driver-password=pw")
    monkeypatch.setattr("sys.argv", words)
    assert (await api.ask("/debug/pprof/cmdline"))[1].split(b"\0") == [
        b"run",
        b"--manifest-url-header=<hidden>",
        b"--manifest_url_header",
        b"<hidden>",
        b"--v=2",
        b"--storage-driver-password=<hidden>",
    ]
