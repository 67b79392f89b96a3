from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from lightkube.models.core_v1 import Secret
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.credentials import Login, NodeKeyring, Puller, secret_logins
from kubelet_trio.model import PodKey, PodUid, thread_offload

POD = Puller(PodKey("default", "web"), PodUid("u"))


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(kind: str, key: str, content: object) -> Secret:
    text = content if isinstance(content, str) else json.dumps(content)
    return Secret(
        metadata=ObjectMeta(name="pull", namespace="default"), type=kind, data={key: encoded(text)}
    )


def config_json(content: object) -> Secret:
    return secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", content)


def test_both_types_of_secrets_are_read() -> None:
    entry = {"reg.example": {"username": "u", "password": "p"}}
    assert secret_logins(config_json({"auths": entry})) == {"reg.example": Login("u", "p")}
    legacy = secret("kubernetes.io/dockercfg", ".dockercfg", entry)
    assert secret_logins(legacy) == {"reg.example": Login("u", "p")}
    assert secret_logins(secret("Opaque", ".dockerconfigjson", {"auths": entry})) == {}


@pytest.mark.parametrize(
    "auth",
    # Also in lines, as `base64` and `base64 -w 76` print it (TestDecodeDockerConfigFieldAuth).
    [
        encoded("u:p:q"),
        encoded("u:p:q").rstrip("="),
        encoded("u:p:q") + "\n",
        encoded("u:p:q")[:4] + "\r\n" + encoded("u:p:q")[4:],
    ],
)
def test_auth_goes_before_name_and_password(auth: str) -> None:
    entry = {"reg.example": {"auth": auth, "username": "x", "password": "y"}}
    assert secret_logins(config_json({"auths": entry})) == {"reg.example": Login("u", "p:q")}


def test_null_is_no_value() -> None:
    entry = {"username": "u", "password": "p", "email": None, "auth": None}
    auths = {"reg.example": entry, "other.example": None}
    wanted = {"reg.example": Login("u", "p"), "other.example": Login()}
    assert secret_logins(config_json({"auths": auths})) == wanted
    assert secret_logins(config_json(None)) == {}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("{", "not JSON"),
        ("[" * 1500, "not JSON"),  # more levels than a decoder goes down
        ([], "not a JSON object"),
        ({"auths": {"r": {"auth": "%%%"}}}, "auth is not base64 of text"),
        ({"auths": {"r": {"auth": encoded("u:p") + " "}}}, "auth is not base64 of text"),
        ({"auths": {"r": {"auth": encoded("hunter2")}}}, r"base64\(username:password\)"),
        ({"auths": {"r": {"username": 7}}}, "username is not a string"),
    ],
)
def test_a_broken_secret_is_named_and_not_quoted(content: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"image pull secret default/pull: .*{wanted}") as caught:
        secret_logins(config_json(content))
    assert "hunter2" not in str(caught.value)


def test_a_login_does_not_show_its_password() -> None:
    assert "p4ss" not in repr(Login("u", "p4ss"))


async def test_the_nodes_file_is_used_after_the_pods_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    auths = {"auths": {"reg.example": {"auth": encoded("node:1")}}}
    (tmp_path / "config.json").write_text(json.dumps(auths))
    keyring = NodeKeyring(tmp_path, thread_offload)
    own = {"reg.example": Login("pod", "2")}
    assert await keyring.logins("reg.example/app:1", [own], POD) == [
        Login("pod", "2"),
        Login("node", "1"),
    ]
    assert await keyring.logins("other.example/app", [own], POD) == []


async def test_a_broken_file_leaves_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "config.json").write_text("{")
    (tmp_path / ".docker").mkdir()
    auths = {"auths": {"reg.example": {"auth": encoded("home:1")}}}
    (tmp_path / ".docker" / "config.json").write_text(json.dumps(auths))
    keyring = NodeKeyring(tmp_path / "root", thread_offload)
    assert await keyring.logins("reg.example/app", [], POD) == [Login("home", "1")]
