"""Credentials from programs and files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kubelet_trio.kube.credentials import Credentials
from kubelet_trio.kube.errors import CredentialsError
from kubelet_trio.kube.exec_plugin import read_credentials, run_plugin
from kubelet_trio.kube.kubeconfig import EXEC_VERSIONS, ClientConfig, DataOrFile, ExecPlugin
from tests.harness.authority import Authority

V1, BETA = EXEC_VERSIONS

PROGRAM = """
import json, os, pathlib, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
directory = pathlib.Path(sys.argv[1])
runs = directory / "runs"
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
(directory / "info").write_text(json.dumps(info))
status = json.loads((directory / "status").read_text())
answer = {"kind": "ExecCredential", "apiVersion": info["apiVersion"], "status": status}
json.dump(answer, sys.stdout)
"""


class Wall:
    """Wall time that a test sets."""

    now = 1_800_000_000.0

    def time(self) -> float:
        return self.now


def plugin(directory: Path, **options: Any) -> ExecPlugin:
    (directory / "program.py").write_text(PROGRAM)
    args = (str(directory / "program.py"), str(directory))
    return ExecPlugin(command=sys.executable, args=args, **options)


def hand_out(directory: Path, **status: str) -> None:
    (directory / "status").write_text(json.dumps(status))


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text())


def authorization(credentials: Credentials) -> str:
    return dict(credentials.headers).get("Authorization", "")


async def test_a_programs_token_is_kept_until_it_ends(tmp_path: Path) -> None:
    wall = Wall()
    hand_out(tmp_path, token="one", expirationTimestamp="2027-01-15T08:10:00Z")
    config = ClientConfig(server="https://kube.example", exec_plugin=plugin(tmp_path))
    credentials = Credentials(config, clock=wall)
    await credentials.refresh()
    await credentials.refresh()
    assert (authorization(credentials), runs(tmp_path)) == ("Bearer one", 1)
    hand_out(tmp_path, token="two")
    wall.now += 600  # 08:10:00
    await credentials.refresh()
    assert (authorization(credentials), runs(tmp_path)) == ("Bearer two", 2)
    wall.now += 1e6
    await credentials.refresh()
    assert runs(tmp_path) == 2
    await credentials.refresh(refused=True)
    assert runs(tmp_path) == 3


@pytest.mark.parametrize("version", [V1, BETA])
async def test_a_program_is_told_of_the_cluster(tmp_path: Path, version: str) -> None:
    hand_out(tmp_path, token="t")
    config = ClientConfig(
        server="https://kube.example",
        ca=DataOrFile(data=b"authority"),
        tls_server_name="inside",
        exec_plugin=plugin(
            tmp_path, api_version=version, provide_cluster_info=True, cluster_config={"a": 1}
        ),
    )
    assert config.exec_plugin is not None
    assert (await run_plugin(config.exec_plugin, config)).token == "t"
    assert json.loads((tmp_path / "info").read_text()) == {
        "kind": "ExecCredential",
        "apiVersion": version,
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://kube.example",
                "tls-server-name": "inside",
                "certificate-authority-data": "YXV0aG9yaXR5",
                "config": {"a": 1},
            },
        },
    }


async def test_a_programs_certificate_is_used(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("client", "me")
    certificate, key = pair.certificate.read_text(), pair.key.read_text()
    hand_out(tmp_path, clientCertificateData=certificate, clientKeyData=key)
    config = ClientConfig(server="https://kube.example", exec_plugin=plugin(tmp_path))
    credentials = Credentials(config)
    await credentials.refresh()
    assert credentials.material is not None
    assert credentials.material.certificate == certificate.encode()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, "neither a token nor a client certificate"),
        ({"clientCertificateData": "c"}, "come together only"),
        ({"token": 5}, "not an ExecCredential"),
    ],
)
def test_what_a_program_may_not_say(status: dict[str, Any], words: str) -> None:
    answer = {"kind": "ExecCredential", "apiVersion": V1, "status": status}
    with pytest.raises(CredentialsError, match=f"^here: .*{words}"):
        read_credentials(json.dumps(answer).encode(), V1, "here")


@pytest.mark.parametrize("output", [b"", b"oops", b'{"kind":"ExecCredential"}'])
def test_nonsense_from_a_program(output: bytes) -> None:
    with pytest.raises(CredentialsError, match="not an ExecCredential"):
        read_credentials(output, V1, "here")


def test_an_answer_of_another_version() -> None:
    answer = json.dumps({"kind": "ExecCredential", "apiVersion": BETA, "status": {"token": "t"}})
    with pytest.raises(CredentialsError, match=f"expected {V1} ExecCredential, got {BETA}"):
        read_credentials(answer.encode(), V1, "here")


async def test_a_program_that_fails_or_lacks(tmp_path: Path) -> None:
    config = ClientConfig(server="https://kube.example", origin="conf")
    lacking = ExecPlugin(command=str(tmp_path / "none"), install_hint="apt install none")
    with pytest.raises(CredentialsError, match="none: No such file or directory: apt install"):
        await run_plugin(lacking, config)
    failing = ExecPlugin(command=sys.executable, args=("-c", "import sys; sys.exit('no luck')"))
    with pytest.raises(CredentialsError, match=r"^conf: exec plugin .*: exit code 1: no luck"):
        await run_plugin(failing, config)


async def test_an_empty_token_file_is_no_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("\n")
    config = ClientConfig(server="https://kube.example", token_file=file)
    credentials = Credentials(config)
    with pytest.raises(CredentialsError, match="read empty token"):
        await credentials.refresh()
    file.write_text("good")
    await credentials.refresh()
    assert authorization(credentials) == "Bearer good"
    # Once there are credentials, an empty file is one that is being written.
    file.write_text("")
    await credentials.refresh(refused=True)
    assert authorization(credentials) == "Bearer good"


async def test_a_key_with_a_passphrase_is_refused(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("client", "me")
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"secret"),
    )
    config = ClientConfig(
        server="https://kube.example",
        origin="conf",
        certificate=DataOrFile(file=pair.certificate, field="users[0].user.client-certificate"),
        key=DataOrFile(data=locked),
    )
    with pytest.raises(CredentialsError, match="the key has a passphrase"):
        await Credentials(config).refresh()


async def test_an_issued_certificate_goes_before_all_else(tmp_path: Path) -> None:
    authority, issued = Authority(tmp_path), tmp_path / "issued.pem"
    hand_out(tmp_path, token="from the program")
    config = ClientConfig(
        server="https://kube.example",
        ca=DataOrFile(file=authority.certificate),
        issued=issued,
        exec_plugin=plugin(tmp_path),
    )
    credentials = Credentials(config)
    await credentials.refresh()
    assert authorization(credentials) == "Bearer from the program"
    pair = authority.issue("node", "system:node:node")
    issued.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    await credentials.refresh(refused=True)
    assert authorization(credentials) == ""
    assert credentials.material is not None
    assert credentials.material.certificate == issued.read_bytes()
    assert runs(tmp_path) == 1
    # The next one is found as any other file that changes.
    pair = authority.issue("again", "system:node:node")
    issued.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    await credentials.refresh(refused=True)
    assert credentials.material.certificate == issued.read_bytes()
    # From the start it is all there is: the program is not even run.
    again = Credentials(config)
    await again.refresh()
    assert runs(tmp_path) == 1
