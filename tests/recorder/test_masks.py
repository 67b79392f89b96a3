"""What recordings leave out: the table of `masks`, line by line."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import (
    ConfigMap,
    Container,
    CSIPersistentVolumeSource,
    CSIVolumeSource,
    EnvVar,
    EnvVarSource,
    ExecAction,
    FlexVolumeSource,
    HTTPGetAction,
    HTTPHeader,
    Lifecycle,
    LifecycleHandler,
    PersistentVolume,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
    Probe,
    Secret,
    SecretKeySelector,
    Volume,
)
from lightkube.models.meta_v1 import ManagedFieldsEntry, ObjectMeta
from lightkube.models.resource_v1 import (
    DeviceClaim,
    DeviceClaimConfiguration,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
)
from lightkube.models.storage_v1 import StorageClass

from kubelet_trio.cri import ImagePullError, v1
from kubelet_trio.recorder.bodies import (
    Failure,
    Variables,
    encode_answer,
    encode_call,
    encode_object,
    encode_pod,
    encode_status,
)
from kubelet_trio.recorder.masks import LEFT_OUT, looks_secret, mask_bytes, mask_text, mask_words

S = "planted-value"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def check(body: bytes, *stays: str) -> None:
    """Fail if the planted value is in a body, plain or in base64; or if something else is not."""
    for planted in (S.encode(), *(base64.b64encode(b"x" * n + S.encode())[4:-4] for n in range(3))):
        assert planted not in body, body
    for text in stays:
        assert text.encode() in body, body


_SECRET_NAMES = """
    password DB_PASSWORD passwd PGPASS PASS pwd secret client-secret TOKEN access_token
    csi.storage.k8s.io/serviceAccount.tokens credentials AWS_ACCESS_KEY_ID apiKey API-KEY
    signing_key encryption.key SSH_KEY privateKey private_key Authorization X-Auth-Token Cookie
    SENTRY_DSN DSN connectionString AzureConnStr KEY db_key passphrase accountKey
"""
_PLAIN_NAMES = "PORT LOG_LEVEL path keyboard monkey server share type fsName KEYS_PER_PAGE"


@pytest.mark.parametrize("name", _SECRET_NAMES.split())
def test_names_that_look_like_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", _PLAIN_NAMES.split())
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"--db-password={S}", f"--db-password={LEFT_OUT}"),
        (f"TOKEN: {S}, port: 80", f"TOKEN: {LEFT_OUT}, port: 80"),
        (f'password="{S} {S}" x', f"password={LEFT_OUT} x"),
        (f"curl -H 'Authorization: Bearer {S}'", f"curl -H 'Authorization: {LEFT_OUT}'"),
        (f'{{"secret": "{S}", "a": 1}}', f'{{"secret": {LEFT_OUT}, "a": 1}}'),
        ("no = secrets : here", f"no = secrets : {LEFT_OUT}"),
        ("a plain text", "a plain text"),
        ("--port=80", "--port=80"),
    ],
)
def test_what_is_assigned_to_such_names_in_a_text(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["run", "--password", S, "--port", "80"], ["run", "--password", LEFT_OUT, "--port", "80"]),
        (["run", "--token", "-v"], ["run", "--token", "-v"]),
        (["sh", "-c", f"export TOKEN={S}; run"], ["sh", "-c", f"export TOKEN={LEFT_OUT}; run"]),
        ([f"--secret={S}", "file"], [f"--secret={LEFT_OUT}", "file"]),
    ],
)
def test_commands(words: list[str], masked: list[str]) -> None:
    mask_words(words)
    assert words == masked


@pytest.mark.parametrize(
    "text",
    [
        f"postgres://user:{S}@db.example/x",
        f"https://{S}@git.example",
        f"Bearer {S}",
        f"Basic {S}",
        f"-----BEGIN RSA PRIVATE KEY-----\\n{S}\\n-----END RSA PRIVATE KEY-----\\n",
        f"-----BEGIN PRIVATE KEY-----\\n{S}",
        f"eyJhbGciOiJSUzI1NiJ9.{S}.{S}",
    ],
)
def test_what_is_left_out_wherever_it_stands(text: str) -> None:
    body = msgspec.json.encode({"before": 1, "text": f"a {text} b", "after": "stays"})
    found = msgspec.json.decode(mask_bytes(body))
    assert S not in str(found)
    assert (found["before"], found["after"]) == (1, "stays")


def test_other_text_stays_as_it_is() -> None:
    body = msgspec.json.encode({"a": "https://example/path@2", "b": "Basic idea", "c": "eyJ"})
    assert mask_bytes(body) == body


def handler() -> LifecycleHandler:
    headers = [HTTPHeader(name="Authorization", value=S), HTTPHeader(name="Host", value="stays-h")]
    return LifecycleHandler(
        exec=ExecAction(command=["run", f"--token={S}"]),
        httpGet=HTTPGetAction(port=80, path=f"/x?token={S}", httpHeaders=headers),
    )


def make_pod() -> Pod:
    probe = Probe(exec=handler().exec, httpGet=handler().httpGet)
    hooks = Lifecycle(postStart=handler(), preStop=handler())
    reference = EnvVarSource(secretKeyRef=SecretKeySelector(key="token", name="stays-ref"))
    container = Container(
        name="main",
        command=["stays-command", "--password", S],
        args=[f"--token={S}"],
        env=[
            EnvVar(name="DB_PASSWORD", value=S),
            EnvVar(name="OPTIONS", value=f"a=1 password={S}"),
            EnvVar(name="PLAIN", value="stays-env"),
            EnvVar(name="TOKEN", valueFrom=reference),
        ],
        livenessProbe=probe,
        readinessProbe=probe,
        startupProbe=probe,
        lifecycle=hooks,
    )
    volumes = [
        Volume(
            name="a",
            flexVolume=FlexVolumeSource(driver="d", options={"password": S, "share": "stays-o"}),
        ),
        Volume(
            name="b", csi=CSIVolumeSource(driver="d", volumeAttributes={"token": S, "a": "stays-a"})
        ),
    ]
    meta = ObjectMeta(
        name="web",
        annotations={LAST_APPLIED: S, "example/token": S, "example/plain": "stays-annotation"},
        managedFields=[ManagedFieldsEntry(manager=S)],
    )
    spec = PodSpec(containers=[container], initContainers=[container], volumes=volumes)
    return Pod(metadata=meta, spec=spec)


def test_pods() -> None:
    stays = ("command", "env", "ref", "o", "a", "annotation", "h")
    check(encode_pod(make_pod())[0], *(f'stays-{name}"' for name in stays))


def test_a_pod_is_not_changed_by_being_recorded() -> None:
    pod = make_pod()
    encode_pod(pod)
    assert pod == make_pod()


def test_objects() -> None:
    meta = ObjectMeta(name="x", annotations={LAST_APPLIED: S})
    encoded = base64.b64encode(S.encode()).decode()
    secret = Secret(metadata=meta, data={"stays-key": encoded}, stringData={"stays-too": S})
    check(encode_object(secret, "Secret"), "stays-key", "stays-too")
    found = msgspec.json.decode(encode_object(secret, "Secret"), type=Secret)
    assert found.data == {"stays-key": base64.b64encode(b"{}").decode()}
    config = ConfigMap(metadata=meta, data={"stays-key": S}, binaryData={"stays-too": encoded})
    check(encode_object(config, "ConfigMap"), "stays-key", "stays-too")
    volume = PersistentVolume(
        metadata=meta,
        spec=PersistentVolumeSpec(
            mountOptions=[f"password={S}", "stays-option"],
            csi=CSIPersistentVolumeSource(
                driver="d", volumeHandle="stays-handle", volumeAttributes={"secret": S}
            ),
        ),
    )
    check(encode_object(volume, "PersistentVolume"), "stays-option", "stays-handle")
    storage = StorageClass(provisioner="stays-p", parameters={"secret": S, "type": "stays-type"})
    check(encode_object(storage, "StorageClass"), "stays-p", "stays-type")
    opaque = OpaqueDeviceConfiguration(driver="stays-driver", parameters={"anything": S})
    devices = DeviceClaim(config=[DeviceClaimConfiguration(opaque=opaque)])
    claim = ResourceClaim(spec=ResourceClaimSpec(devices=devices))
    check(encode_object(claim, "ResourceClaim"), "stays-driver")


def container_config() -> v1.ContainerConfig:
    hook = msgspec.json.encode(handler()).decode()
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="stays-name"),
        command=["run", S],
        args=[S],
        envs=[v1.KeyValue(key="STAYS", value=S.encode())],
        annotations={
            "io.kubernetes.container.preStopHandler": hook,
            "io.kubernetes.container.hash": "stays-hash",
            "example/token": S,
        },
    )


def test_calls() -> None:
    config = container_config()
    body = encode_call(1, {"pod_sandbox_id": "stays-id", "config": config}, Variables())
    check(body, "stays-name", "STAYS", "stays-hash", "stays-id", "stays-h")
    assert config == container_config()
    sandbox = v1.PodSandboxConfig(annotations={LAST_APPLIED: S, "token": S, "a": "stays-a"})
    request = {"config": sandbox, "runtime_handler": "stays-handler"}
    check(encode_call(2, request, Variables()), "stays-a")


def test_variables_that_plugins_give() -> None:
    """A digest tells whether a variable has the value that a plugin has given; no other has one."""
    variables = Variables()
    given = {name: read_answer_mark(m) for name, m in variables.given({"GPU": S, "B": S}).items()}
    assert len({*given.values()}) == 2  # the name counts
    envs = [
        *(v1.KeyValue(key="GPU", value=S.encode()), v1.KeyValue(key="B", value=b"other")),
        v1.KeyValue(key="OWN", value=S.encode()),
    ]
    body = encode_call(1, {"config": replace(container_config(), envs=envs)}, variables)
    check(body, "GPU")
    told = msgspec.json.decode(body)["request"]["config"]["envs"]
    values = {each["key"]: base64.b64decode(each["value"]).decode() for each in told}
    assert read_answer_mark(values["GPU"]) == given["GPU"]
    assert read_answer_mark(values["B"]) != given["B"]
    assert values["OWN"] == LEFT_OUT
    # Another agent has another key.
    assert Variables().given({"GPU": S}) != variables.given({"GPU": S})


def read_answer_mark(mark: str) -> str:
    (digest,) = re.findall(rf"{re.escape(LEFT_OUT)} ([0-9a-f]{{8}})$", mark)
    return str(digest)


ANSWERS: dict[str, Any] = {
    "a status": {
        "status": v1.ContainerStatus(
            id="stays", annotations={"token": S}, message=f"failed: password={S}"
        ),
        "pid": 7,
    },
    "a sandbox": v1.PodSandboxStatus(id="stays", annotations={LAST_APPLIED: S}),
    "the runtime": v1.StatusResponse(
        status=v1.RuntimeStatus(conditions=[v1.RuntimeCondition(type="stays")]),
        info={"config": S},
    ),
    "an error": Failure.of(
        ImagePullError("PullImage", f"stays: https://u:{S}@registry/x: token={S}", code="Unknown")
    ),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_answers(answer: Any) -> None:
    check(encode_answer(answer), "stays")


def test_statuses() -> None:
    status = {"phase": "Failed", "message": f"stays: password={S}"}
    containers = [{"state": {"terminated": {"message": f"token: {S}", "reason": "Error"}}}]
    check(encode_status({**status, "containerStatuses": containers}), "stays", "Error")
