"""Secrets are planted wherever an agent meets any; none is found in what it writes and tells.

Looked through: the log at `-v 10` with its tracebacks, every page of every door, what the API
server has but the secrets themselves, and every file but volumes and those for root alone.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
import trio
from lightkube.models.core_v1 import (
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    ExecAction,
    LocalObjectReference,
    Pod,
    PodSpec,
    Probe,
    ProjectedVolumeSource,
    Secret,
    SecretEnvSource,
    SecretKeySelector,
    SecretVolumeSource,
    ServiceAccount,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.agent import Agent, NodeApiSettings, ReviewApis
from kubelet_trio.agent.node_api import NodeApi
from kubelet_trio.agent.pages import loopback_page
from kubelet_trio.cli.logging import configure_logging
from kubelet_trio.config.load import load_settings
from kubelet_trio.credentials import load_providers
from kubelet_trio.daemon import node_api_settings
from kubelet_trio.daemon.build import control_api
from kubelet_trio.kube import KubeError, KubeUnavailableError, open_client
from kubelet_trio.kube.errors import CredentialsError, KubeconfigError
from kubelet_trio.kube.exec_plugin import read_credentials
from kubelet_trio.kube.kubeconfig import ClientConfig, DataOrFile, load_kubeconfig
from kubelet_trio.model import inline_offload, set_verbosity
from kubelet_trio.recorder import Kind, read_entries, segment_contents
from kubelet_trio.server import ApiOptions, HttpError, Request, Router
from kubelet_trio.sources import HttpSource
from kubelet_trio.testing import FaultKind
from tests.agent.test_cluster import NAME, World
from tests.harness.authority import Authority
from tests.kube.http_server import Asked, Reply, serve
from tests.sources.test_http import Body


def plant(place: str) -> str:
    return f"planted-{place}-0f3a9b"


class Log:
    """All that is logged, at the highest verbosity."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture
def log() -> Iterator[Log]:
    root, found, before = logging.getLogger(), Log(), structlog.get_config()
    handlers, level = root.handlers, root.level
    configure_logging(10, "json", found.stream)
    # The package's loggers outlive this test.
    structlog.configure(cache_logger_on_first_use=False)
    yield found
    set_verbosity(0)
    structlog.configure(**before)
    root.handlers = handlers
    root.setLevel(level)


def check(where: str, text: str | bytes, *more: str) -> None:
    """Fail where a planted value shows, as it is or in base64."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    for value in ("planted-", *more):
        encoded = (base64.b64encode(b"\0" * n + value.encode())[4:-4] for n in (3, 4, 5))
        for form in (value.encode(), *encoded):
            at = data.find(form)
            assert at < 0, f"{where}: {data[max(0, at - 200) : at + 100]!r}"


def metadata(name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace="default")


def of_secret(name: str, key: str, secret: str = "keys") -> EnvVar:
    source = EnvVarSource(secretKeyRef=SecretKeySelector(key=key, name=secret))
    return EnvVar(name=name, valueFrom=source)


def pod(name: str, *env: EnvVar, spec: dict[str, Any] | None = None, **container: Any) -> Pod:
    mounts = [
        VolumeMount(name="keys", mountPath="/keys"),
        VolumeMount(name="token", mountPath="/token"),
        *container.pop("volumeMounts", ()),
    ]
    token = VolumeProjection(
        serviceAccountToken=ServiceAccountTokenProjection(path="token", expirationSeconds=3600)
    )
    volumes = [
        Volume(name="keys", secret=SecretVolumeSource(secretName="keys")),
        Volume(name="token", projected=ProjectedVolumeSource(sources=[token])),
        *(spec or {}).pop("volumes", ()),
    ]
    more = {"imagePullSecrets": [LocalObjectReference(name="pull")], **(spec or {})}
    main = {"image": "registry.example/private/web", "imagePullPolicy": "Always", **container}
    variables = [of_secret("TOKEN", "token"), *env]
    return Pod(
        metadata=metadata(name),
        spec=PodSpec(
            nodeName=NAME,
            containers=[Container(name="web", env=variables, volumeMounts=mounts, **main)],
            volumes=volumes,
            **more,
        ),
    )


def pods() -> list[Pod]:
    """Some that run, and some for each way in which secrets may be got wrong."""
    ask = ExecAction(command=["check", "$(TOKEN)"])
    probe = Probe(exec=ask, periodSeconds=2, timeoutSeconds=1, failureThreshold=1)
    everything = EnvFromSource(secretRef=SecretEnvSource(name="keys"))
    return [
        pod("good", command=["run", "--token=$(TOKEN)"], args=["$(TOKEN)"], envFrom=[everything]),
        pod("no-key", of_secret("A", "no-such-key")),
        pod("too-long", of_secret("A", "long", "big")),
        pod("no-string", of_secret("A", "binary", "big")),
        pod("bad-login", spec={"imagePullSecrets": [LocalObjectReference(name="bad-json")]}),
        pod("bad-auth", spec={"imagePullSecrets": [LocalObjectReference(name="bad-auth")]}),
        pod("no-create", image="no-create"),
        pod("no-start", image="no-start"),
        pod("no-pull", image="registry.example/private/missing"),
        pod("ends", image="exit-1", command=["exit-1", "$(TOKEN)"]),
        pod("asked", livenessProbe=probe, readinessProbe=probe),
        pod(
            "no-file",
            spec={"volumes": [Volume(name="v", secret=SecretVolumeSource(secretName="none"))]},
            volumeMounts=[VolumeMount(name="v", mountPath="/v")],
        ),
    ]


def furnish(world: World) -> None:
    kube = world.kube
    login = {"auths": {"registry.example": {"username": "u", "password": plant("password")}}}
    keys = {"token": plant("value"), "not.a-name": plant("key")}
    kube.add(Secret(metadata=metadata("keys"), stringData=keys))
    binary = {"binary": base64.b64encode(b"\xff" + plant("binary").encode()).decode()}
    long = {"long": plant("long") * 20_000}
    kube.add(Secret(metadata=metadata("big"), data=binary, stringData=long))
    json_type = "kubernetes.io/dockerconfigjson"
    for name, text in {
        "pull": json.dumps(login),
        "bad-json": f'{{"auths": {{"registry.example": {{"password": {plant("json")}',
        "bad-auth": json.dumps({"auths": {"registry.example": {"auth": plant("auth")}}}),
    }.items():
        data = {".dockerconfigjson": text}
        kube.add(Secret(metadata=metadata(name), type=json_type, stringData=data))
    kube.add(ServiceAccount(metadata=metadata("default")))
    kube.server.reviews.users[plant("bearer")] = {"username": "known"}


async def ask(router: Any, method: str, path: str, **headers: str) -> bytes:
    """Return what is answered, whole."""
    body = bytearray()

    async def send(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        body.extend(data)

    try:
        answer = await router(Request(method, path, headers=headers))
        if answer.stream is not None:
            with trio.move_on_after(1):
                await answer.stream(send)
    except HttpError as exc:
        return str(exc).encode()
    return b"".join((body, bytes(answer.body), repr(answer.headers).encode()))


def paths(router: Router) -> Iterator[tuple[str, str]]:
    """Yield a path for every route: of the pods that there are, or of none."""
    for route in router.routes:
        named = route.pattern
        for name in ("good", "asked"):
            values = {"namespace": "default", "pod": name, "name": name, "container": "web"}
            path = named
            for key, value in values.items():
                path = path.replace(f"{{{key}}}", value)
            yield route.method, path.replace("{check}", "ping").replace("{path...}", "")
    for profile in ("cmdline", "goroutine"):
        yield "GET", f"/debug/pprof/{profile}"


async def look_at_doors(agent: Agent, world: World, arguments: list[str]) -> None:
    told = node_api_settings(load_settings(arguments))
    assert told is not None
    reviews = ReviewApis(world.kube, world.kube)
    https = NodeApiSettings(
        "127.0.0.1",
        configz=told.configz,
        flags=told.flags,
        options=ApiOptions(enable_debug_flags_handler=True),
    )
    api = NodeApi(agent, https, reviews, inline_offload)
    for token in (plant("bearer"), plant("forged")):
        protocol = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
        offered = f"base64url.bearer.authorization.k8s.io.{protocol}"
        for path in ("/pods", "/metrics", "/exec/default/good/web"):
            check(path, await ask(api._guard(), "GET", path, authorization=f"Bearer {token}"))
            hidden = {"sec-websocket-protocol": offered}
            check(path, await ask(api._guard(), "GET", path, **hidden))
    for router in (
        api._router(),
        api._router(read_only=True),
        control_api(agent),
        loopback_page(agent),
    ):
        for method, path in paths(router):
            check(f"{method} {path}", await ask(router, method, path))


def look_at_files(base: Path, *more: str) -> None:
    seen = 0
    for parent, _, names in os.walk(base):
        for name in names:
            path = Path(parent, name)
            found = path.lstat()
            if "/volumes/" in f"{path}" or not stat.S_ISREG(found.st_mode):
                continue
            if stat.S_IMODE(found.st_mode) & 0o077 and not _is_closed(path.parent, base):
                check(str(path), path.read_bytes(), *more)
                check(str(path), str(path))
            seen += 1
    assert seen


def look_at_recording(root_dir: Path, *more: str) -> None:
    """Look at what the flight recorder has kept, which may be sent to others."""
    kinds = set()
    for path, data in segment_contents(root_dir / "recorder"):
        for entry in read_entries(data, str(path)):
            check(f"{entry.kind.name} {entry.key}", entry.key.encode() + entry.body, *more)
            kinds.add(entry.kind)
    assert kinds >= {Kind.WANTED, Kind.OBJECT, Kind.CALL, Kind.READ, Kind.PROBE, Kind.STATUS}


def _is_closed(directory: Path, base: Path) -> bool:
    """Whether a directory above keeps everybody but its owner out."""
    while directory != base:
        if not stat.S_IMODE(directory.stat().st_mode) & 0o077:
            return True
        directory = directory.parent
    return False


async def test_a_busy_agent_tells_nobody(
    tmp_path: Path, autojump_clock: MockClock, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.offline = tmp_path / "root" / "offline"
    furnish(world)
    arguments = [
        f"--manifest-url-header=Authorization:{plant('header')}",
        f"--manifest-url=http://user:{plant('url')}@manifests.example/?token={plant('query')}",
    ]
    monkeypatch.setattr("sys.argv", ["kubelet-trio", "run", *arguments])
    world.host.runtime.images.logins["registry.example/private/web"] = "u"
    for made in pods():
        world.kube.add(made)
    async with world.running(recorder_size=8 << 20) as agent:
        await world.wait(lambda: world.is_ready("good"))
        world.host.runtime.faults.add(FaultKind.ERROR, "ExecSync", times=3)
        await trio.sleep(60)
        with monkeypatch.context() as broken:
            broken.setattr(world.host.runtime, "create_container", _crash)
            world.kube.add(pod("crashes"))
            await trio.sleep(5)
        assert "a bug" in log.text
        world.kube.change(
            Secret, "keys", {"data": {"token": base64.b64encode(plant("new").encode()).decode()}}
        )
        world.kube.remove(Pod, "ends", grace_period=1)
        world.kube.cut()
        await trio.sleep(30)
        tokens = list(world.kube.server.reviews.tokens)
        assert tokens
        await look_at_doors(agent, world, arguments)
        store = world.kube.server.store
        kinds = ("Pod", "Node", "Event", "Lease")
        for kind in kinds:
            check(kind, json.dumps(store.all(kind)), *tokens)
        assert len(store.all("Pod")) >= len(pods()) - 1
        events = json.dumps([e.message for e in agent.events.events()])
        check("events", events, *tokens)
    files = world.host.base
    assert any(plant("new") in p.read_text() for p in files.rglob("volumes/*/keys/..data/token"))
    look_at_files(files, *tokens)
    look_at_recording(files / "root", *tokens)
    assert len(log.text) > 10_000
    check("log", log.text, *tokens)


async def _crash(*_: object, **__: object) -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError("a bug")


@pytest.mark.parametrize("code", [200, 401, 403, 500])
@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_the_client_of_the_api_server_tells_nobody(
    tmp_path: Path, autojump_clock: MockClock, log: Log, protocol: str, code: int
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", "kube", hosts=("kube.example",))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    tls.set_alpn_protocols([protocol])

    async def answer(asked: Asked, reply: Reply) -> None:
        assert plant("client") in asked.headers["authorization"]
        if code != 200:
            # A server, or a proxy before it, that repeats what it was sent.
            await reply.send(code, json.dumps({"message": "no"}).encode())
            return
        body = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": plant("answer")}}
        await reply.send(200, json.dumps(body).encode())

    config = ClientConfig(
        server="https://kube.example:6443",
        token=plant("client"),
        ca=DataOrFile(data=authority.certificate.read_bytes()),
    )
    async with (
        serve(answer, tls) as server,
        open_client(config, network=server, offload=inline_offload) as client,
    ):
        try:
            await client.get(Secret, "s", namespace="default")
        except (KubeError, KubeUnavailableError) as exc:
            check("error", f"{exc!r} {exc}")
        server.refusing = True
    check("log", log.text)


async def test_the_manifest_urls_secrets_stay_where_they_are(
    autojump_clock: MockClock, log: Log
) -> None:
    answers = iter((401, 302, 200, 500))

    def handle(_: httpx2.Request) -> httpx2.Response:
        code = next(answers, 200)
        there = {"location": f"http://other.example/?token={plant('redirect')}"}
        return httpx2.Response(code, stream=Body(b"{"), headers=there if code == 302 else {})

    source = HttpSource(
        f"http://user:{plant('word')}@manifests.example/pods?token={plant('query')}",
        "node",
        headers=[("X-Token", plant("header")), ("Authorization", f"Bearer {plant('bearer')}")],
        interval=1,
        transport=httpx2.MockTransport(handle),
        offload=inline_offload,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(source.run)
        for _ in range(6):
            await trio.sleep(1)
            check("problems", repr(source.problems.value))
        nursery.cancel_scope.cancel()
    check("log", log.text)


_EXEC = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1"}
_CONFIG = """
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
clusters: [{{name: k, cluster: {{server: "https://kube.example"}}}}]
users: [{{name: u, user: {user}}}]
"""


@pytest.mark.parametrize(
    "user",
    [
        f"{{token: [{plant('list')}]}}",
        f"{{token: {plant('token')}, username: {{a: {plant('user')}}}}}",
        f"{{client-certificate-data: {plant('cert')}, client-key-data: '{plant('key')}'}}",
        f"{{client-key-data: '{plant('key')}'}}",
        f"{{username: a, password: {{p: {plant('password')}}}}}",
        f"{{auth-provider: {{name: gcp, config: {{access-token: {plant('gcp')}}}}}}}",
        f"{{exec: {{command: x, apiVersion: bad, env: [{{name: A, value: {plant('env')}}}]}}}}",
        f"{{exec: {{command: x, env: {plant('env')}}}}}",
        f"{{token: {plant('open')}",
        f"{{token: *{plant('alias')}}}",
        f"{{token: !{plant('tag')} x}}",
        f"{{token: '{plant('quote')}}}",
        f"{plant('text')}",
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named_and_not_quoted(
    tmp_path: Path, user: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(_CONFIG.format(user=user))
    with pytest.raises(KubeconfigError) as caught:
        load_kubeconfig(path)
    assert str(path) in str(caught.value)
    check("error", str(caught.value))


@pytest.mark.parametrize(
    "output",
    [
        plant("text"),
        f'{{"token": "{plant("open")}',
        json.dumps({"kind": "ExecCredential", "status": {"token": [plant("list")]}}),
        json.dumps({**_EXEC, "status": {"clientKeyData": plant("key")}}),
        json.dumps({**_EXEC, "status": {"token": plant("t"), "expirationTimestamp": "soon"}}),
    ],
)
def test_what_an_exec_plugin_printed_is_not_quoted(output: str) -> None:
    with pytest.raises(CredentialsError) as caught:
        read_credentials(output.encode(), _EXEC["apiVersion"], "plugin")
    check("error", str(caught.value))


@pytest.mark.parametrize(
    ("broken", "word"),
    [("x: [", "expected"), ("x: y: z", "mapping"), ("apiVersion: none", "apiVersion")],
)
def test_what_a_credential_provider_is_given_is_not_quoted(
    tmp_path: Path, broken: str, word: str
) -> None:
    path = tmp_path / "providers.yaml"
    path.write_text(
        "kind: CredentialProviderConfig\nproviders:\n- name: p\n"
        f"  env: [{{name: KEY, value: {plant('env')}}}]\n{broken} # {plant('comment')}\n"
    )
    with pytest.raises(ValueError, match=word) as found:
        load_providers(path)
    check("error", str(found.value))
