"""A private control plane: etcd and kube-apiserver, as strict as a real cluster's.

TLS on random loopback ports, Node and RBAC authorisation, NodeRestriction, tokens bound to
pods. There are no controllers: what they would do and a test needs (service accounts, the
signing of certificates), the test's own client does. `python -m` says what is lacking.

The programs are those of KUBEBUILDER_ASSETS (envtest's convention), else PATH's.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import yaml

from tests.harness.authority import Authority, Pair
from tests.harness.hang import hang, resume
from tests.harness.pods import Json, WaitTimeoutError
from tests.harness.ports import free_port

PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
_STARTED = 90.0  # seconds that a start may take
_ATTEMPTS = 3


def find_program(name: str) -> Path | None:
    """Return the program of the control plane that tests use."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    if assets and os.access(Path(assets) / name, os.X_OK):
        return Path(assets) / name
    found = shutil.which(name)
    return Path(found) if found else None


def missing_programs() -> list[str]:
    """Return what of a control plane is not here, one phrase each."""
    return [f"no {name}" for name in PROGRAMS if find_program(name) is None]


class ControlPlaneError(Exception):
    """The control plane does not start; the text holds the end of its log."""


class ControlPlane:
    """etcd and kube-apiserver below one directory, from `open()` to `close()`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._etcd = _Daemon("etcd", base / "etcd.log")
        self._server = _Daemon("kube-apiserver", base / "kube-apiserver.log")
        base.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(base)
        self._serving = self.authority.issue(
            "server", "kube-apiserver", hosts=("127.0.0.1", "localhost")
        )
        self._admin = self.authority.issue("admin", "admin", "system:masters")
        self._tokens = self.authority.signing_key("service-accounts")
        self._etcd_port = self._port = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def version(self) -> tuple[int, int]:
        """The API server's major and minor version."""
        command = [str(self._server.program), "--version"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = re.search(r"v(\d+)\.(\d+)", told)
        assert found is not None, told
        return int(found[1]), int(found[2])

    def open(self) -> None:
        """Start both and return when the API server is ready."""
        for attempt in range(_ATTEMPTS):
            self._etcd_port, self._port = free_port(), free_port()
            try:
                self._start_etcd()
                self.start_server()
            except ControlPlaneError as exc:
                self.close()
                # Somebody may have taken a port between its choice and its use.
                if "address already in use" not in str(exc) or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def close(self) -> None:
        """End both."""
        self._server.stop()
        self._etcd.stop()

    def __enter__(self) -> ControlPlane:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Trouble

    def start_server(self) -> None:
        """Start the API server, on the same port as before, and wait until it is ready."""
        self._server.start(self._server_arguments())
        self._wait("/readyz", self._server)

    def stop_server(self) -> None:
        """End the API server; etcd keeps what it holds."""
        self._server.stop()

    def kill_server(self) -> None:
        """End the API server with SIGKILL, in the middle of what it does."""
        self._server.kill()

    def hang_server(self) -> None:
        """Let the API server accept connections and answer nothing."""
        hang(self._server.pid)

    def resume_server(self) -> None:
        """End the hang."""
        resume(self._server.pid)

    # Credentials

    def kubeconfig(self, name: str, *groups: str) -> Path:
        """Write the kubeconfig of a user who has a certificate, and return its path."""
        pair = self.authority.issue(_file_name(name), name, *groups)
        return self._write_kubeconfig(_file_name(name), _certificate_user(pair))

    def node_kubeconfig(self, node: str) -> Path:
        """Write the kubeconfig of a node's agent."""
        return self.kubeconfig(f"system:node:{node}", "system:nodes")

    def token_kubeconfig(self, file: str, token: str) -> Path:
        """Write the kubeconfig of somebody who has a bearer token."""
        return self._write_kubeconfig(file, {"token": token})

    @property
    def admin_kubeconfig(self) -> Path:
        """The kubeconfig of someone who may do everything."""
        path = self.base / "admin.kubeconfig"
        if not path.exists():
            self._write_kubeconfig("admin", _certificate_user(self._admin))
        return path

    def _write_kubeconfig(self, file: str, user: Json) -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self.authority.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        }
        path = self.base / f"{file}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    # The processes

    def _start_etcd(self) -> None:
        url, peer = f"https://127.0.0.1:{self._etcd_port}", "http://127.0.0.1:0"
        self._etcd.start(
            {
                "data-dir": str(self.base / "etcd"),
                "listen-client-urls": url,
                "advertise-client-urls": url,
                "listen-peer-urls": peer,
                "cert-file": str(self._serving.certificate),
                "key-file": str(self._serving.key),
                "trusted-ca-file": str(self.authority.certificate),
                "client-cert-auth": "true",
            }
        )
        self._wait("/health", self._etcd, self._etcd_port)

    def _server_arguments(self) -> dict[str, str]:
        own, ca = self._serving, str(self.authority.certificate)
        arguments = {
            "etcd-servers": f"https://127.0.0.1:{self._etcd_port}",
            "etcd-cafile": ca,
            "etcd-certfile": str(self._admin.certificate),
            "etcd-keyfile": str(self._admin.key),
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(self._port),
            "endpoint-reconciler-type": "none",  # refuses a loopback address
            "cert-dir": str(self.base),
            "tls-cert-file": str(own.certificate),
            "tls-private-key-file": str(own.key),
            "client-ca-file": ca,
            "kubelet-certificate-authority": ca,
            "kubelet-client-certificate": str(self._admin.certificate),
            "kubelet-client-key": str(self._admin.key),
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(self._tokens.certificate),
            "service-account-signing-key-file": str(self._tokens.key),
            "service-cluster-ip-range": "10.96.0.0/24",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "enable-bootstrap-token-auth": "true",
            "allow-privileged": "true",
            "audit-policy-file": str(self._write_audit_policy()),
            "audit-log-path": str(self.base / "audit.log"),
        }
        if self.version < (1, 22):  # later ones have it on for good
            arguments["feature-gates"] = "BoundServiceAccountTokenVolume=true"
        return arguments

    def _write_audit_policy(self) -> Path:
        path = self.base / "audit-policy.yaml"
        rules = [{"level": "Metadata"}]  # in every stage: a watch is told of when it begins
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        path.write_text(yaml.safe_dump(policy))
        return path

    def audit(self, user: str) -> list[Json]:
        """Return the audit log's entries of a user, oldest first."""
        lines = (self.base / "audit.log").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["user"]["username"] == user]

    def _wait(self, path: str, daemon: _Daemon, port: int = 0) -> None:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(self._admin.certificate, self._admin.key)
        deadline = time.monotonic() + _STARTED
        while not _answers(port or self._port, path, context):
            if not daemon.is_running or time.monotonic() > deadline:
                daemon.stop()
                raise ControlPlaneError(f"{daemon.name} did not start:\n{daemon.tail()}")
            time.sleep(0.1)


class _Daemon:
    """One process, which ends with the test run whatever becomes of that."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def program(self) -> Path:
        found = find_program(self.name)
        assert found is not None, f"no {self.name}"
        return found

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, arguments: dict[str, str]) -> None:
        """Start it. From the main thread: the kernel ends it with the thread that did."""
        assert not self.is_running
        command = [str(self.program), *(f"--{name}={value}" for name, value in arguments.items())]
        if guard := shutil.which("setpriv"):
            command = [guard, "--pdeathsig", "KILL", *command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End it, stopped or not."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            resume(self._process.pid)
            self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def tail(self, lines: int = 30) -> str:
        """Return the end of what it has printed."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def kubectl(plane: ControlPlane, *arguments: str, within: float = 60) -> str:
    """Run kubectl as the administrator and return what it prints."""
    program = find_program("kubectl")
    assert program is not None
    command = [str(program), "--kubeconfig", str(plane.admin_kubeconfig), *arguments]
    environment = {**os.environ, "HOME": str(plane.base)}  # its discovery cache is this run's
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=within, env=environment
        )
    except subprocess.TimeoutExpired:
        raise WaitTimeoutError(f"kubectl {arguments} not done in {within} s") from None
    if ran.returncode:
        raise AssertionError(f"kubectl {arguments} exited {ran.returncode}: {ran.stderr}")
    return ran.stdout


def _answers(port: int, path: str, context: ssl.SSLContext) -> bool:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _certificate_user(pair: Pair) -> Json:
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}


def _file_name(name: str) -> str:
    return name.replace(":", "-")


if __name__ == "__main__":
    lacking = missing_programs()
    if lacking:
        print(", ".join(lacking), file=sys.stderr)
    sys.exit(bool(lacking))
