"""Kubeconfig files.

Read as kubectl reads them: paths are relative to the file, and inline data take precedence over
files. What a node agent cannot do (interactive logins, the removed `auth-provider`) is refused, not
ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from kubelet_trio.kube.errors import KubeconfigError
from kubelet_trio.model import check_yaml_depth, url_scheme, yaml_problem

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_MODES = ("Never", "IfAvailable", "Always")
_PROXIES = ("http", "https")


@dataclass(frozen=True, slots=True)
class DataOrFile:
    """Bytes given inline, or a file that may change; false if there is neither."""

    data: bytes = b""
    file: Path | None = None
    field: str = ""  # its path in the kubeconfig, for errors

    def __bool__(self) -> bool:
        return bool(self.data) or self.file is not None

    def read(self) -> bytes:
        """Return the bytes. Blocks. Raises OSError."""
        return self.file.read_bytes() if self.file is not None else self.data


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints credentials (`exec`)."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    api_version: str = EXEC_VERSIONS[0]
    install_hint: str = ""
    provide_cluster_info: bool = False
    cluster_config: Any = None  # the cluster's extension of client.authentication.k8s.io/exec


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How to reach an API server, and the client's credentials."""

    server: str
    origin: str = ""  # the kubeconfig's path, for errors
    context: str = ""
    namespace: str = ""
    ca: DataOrFile = DataOrFile()
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    proxy_url: str = ""
    disable_compression: bool = False
    certificate: DataOrFile = DataOrFile()
    key: DataOrFile = DataOrFile()
    issued: Path | None = None  # certificate and key in one file; replaces all else once it exists
    token: str = ""
    token_file: Path | None = None
    username: str = ""
    password: str = ""
    exec_plugin: ExecPlugin | None = None
    impersonate: tuple[tuple[str, str], ...] = ()  # headers


def load_kubeconfig(path: Path, context: str = "") -> ClientConfig:
    """Return the client configuration of a context, by default the current one. Blocks.

    Raises:
        KubeconfigError: the file does not exist, is not a kubeconfig or cannot be used.
    """
    try:
        text = path.read_bytes()
    except OSError as exc:
        raise KubeconfigError(str(path), "", exc.strerror or str(exc)) from exc
    return parse_kubeconfig(text, path, context)


def parse_kubeconfig(text: bytes, path: Path, context: str = "") -> ClientConfig:
    """Return the client configuration in a kubeconfig's text. Raises `KubeconfigError`."""
    try:
        # Before the parser: it recurses, and deep nesting could exhaust the C stack.
        check_yaml_depth(text)
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # ValueError: a number with thousands of digits, or an invalid date.
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise KubeconfigError(str(path), "", f"no YAML: {yaml_problem(exc)}") from None
    root = _Fields(document, str(path), "")
    if root.text("kind", "Config") != "Config":
        raise root.error("kind", f"expected Config, got {root.text('kind')!r}")
    name = context or root.text("current-context")
    if not name:
        raise root.error("current-context", "Required value")
    chosen = root.named("contexts", name, "context")
    cluster = root.named("clusters", chosen.required("cluster"), "cluster")
    user_name = chosen.text("user")
    user = root.named("users", user_name, "user") if user_name else _Fields({}, str(path), "users")
    return ClientConfig(
        origin=str(path),
        context=name,
        namespace=chosen.text("namespace"),
        **_cluster(cluster, path.parent),
        **_user(user, cluster, path.parent),
    )


def _cluster(cluster: _Fields, base: Path) -> dict[str, Any]:
    server = cluster.required("server").rstrip("/")
    if url_scheme(server) not in ("http", "https") or not urlsplit(server).hostname:
        raise cluster.error("server", f"expected an http or https URL, got {server!r}")
    proxy = cluster.text("proxy-url")
    if proxy and url_scheme(proxy) not in _PROXIES:
        raise cluster.error("proxy-url", f"expected an http or https URL, got {_shown(proxy)!r}")
    insecure = cluster.flag("insecure-skip-tls-verify")
    ca = cluster.source("certificate-authority", base)
    if insecure and ca:
        problem = "specifying a root certificates file with the insecure flag is not allowed"
        raise cluster.error("insecure-skip-tls-verify", problem)
    return {
        "server": server,
        "ca": ca,
        "tls_server_name": cluster.text("tls-server-name"),
        "insecure_skip_tls_verify": insecure,
        "proxy_url": proxy,
        "disable_compression": cluster.flag("disable-compression"),
    }


def _user(user: _Fields, cluster: _Fields, base: Path) -> dict[str, Any]:
    # Removed from client-go in 1.26.
    if user.value.get("auth-provider"):
        raise user.error("auth-provider", "not supported: use an exec credential plugin")
    certificate = user.source("client-certificate", base)
    key = user.source("client-key", base)
    if certificate and not key:
        raise user.error("client-key", "Required value: a client certificate needs its key")
    if key and not certificate:
        raise user.error("client-certificate", "Required value: a client key needs its certificate")
    token_file = user.text("tokenFile")
    if user.text("username") and (user.text("token") or token_file):
        raise user.error("username", "may not be given along with a token")
    plugin = _exec_plugin(user.section("exec"), cluster, base) if user.value.get("exec") else None
    return {
        "certificate": certificate,
        "key": key,
        "token": user.text("token"),
        "token_file": base / token_file if token_file else None,
        "username": user.text("username"),
        "password": user.text("password"),
        "exec_plugin": plugin,
        "impersonate": tuple(_impersonation(user)),
    }


def _exec_plugin(plugin: _Fields, cluster: _Fields, base: Path) -> ExecPlugin:
    version = plugin.required("apiVersion")
    if version not in EXEC_VERSIONS:
        expected = ", ".join(EXEC_VERSIONS)
        raise plugin.error("apiVersion", f"expected one of {expected}, got {version!r}")
    # v1 requires the field, v1beta1 defaults to IfAvailable.
    mode = plugin.text("interactiveMode", "" if version == EXEC_VERSIONS[0] else "IfAvailable")
    if mode not in _MODES:
        expected = ", ".join(_MODES)
        raise plugin.error("interactiveMode", f"expected one of {expected}, got {mode!r}")
    if mode == "Always":
        raise plugin.error("interactiveMode", "Always: a node agent has no terminal")
    command = plugin.required("command")
    if "/" in command:  # a path is relative to the kubeconfig; a bare name is searched in PATH
        command = str(base / command)
    env = [item for item in plugin.items("env") if item.required("name")]
    configs = (
        extension.value.get("extension")
        for extension in cluster.items("extensions")
        if extension.text("name") == "client.authentication.k8s.io/exec"
    )
    return ExecPlugin(
        command=command,
        args=plugin.texts("args"),
        env=tuple((item.text("name"), item.text("value")) for item in env),
        api_version=version,
        install_hint=plugin.text("installHint"),
        provide_cluster_info=plugin.flag("provideClusterInfo"),
        cluster_config=next(configs, None),
    )


def _impersonation(user: _Fields) -> list[tuple[str, str]]:
    headers = []
    if name := user.text("as"):
        headers.append(("Impersonate-User", name))
    if uid := user.text("as-uid"):
        headers.append(("Impersonate-Uid", uid))
    headers += [("Impersonate-Group", group) for group in user.texts("as-groups")]
    for key, values in (user.value.get("as-user-extra") or {}).items():
        headers += [(f"Impersonate-Extra-{key}", str(value)) for value in values]
    # Impersonating groups without a user is refused by API servers.
    if headers and not user.text("as"):
        raise user.error("as", "Required value: groups, uid and extra need a user")
    return headers


class _Fields:
    """A mapping in a kubeconfig, with its path for errors."""

    def __init__(self, value: Any, origin: str, path: str) -> None:
        self._origin = origin
        self._path = path
        if not isinstance(value, dict):
            raise self.error("", f"expected a mapping, got {type(value).__name__}")
        self.value: dict[str, Any] = value

    def error(self, field: str, problem: str) -> KubeconfigError:
        path = f"{self._path}.{field}".strip(".")
        return KubeconfigError(self._origin, path, problem)

    def text(self, field: str, default: str = "") -> str:
        value = self.value.get(field)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(field, f"expected a string, got {type(value).__name__}")
        return value

    def required(self, field: str) -> str:
        if value := self.text(field):
            return value
        raise self.error(field, "Required value")

    def flag(self, field: str) -> bool:
        value = self.value.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.error(field, f"expected true or false, got {value!r}")
        return bool(value)

    def texts(self, field: str) -> tuple[str, ...]:
        values = self._list(field)
        if not all(isinstance(value, str) for value in values):
            raise self.error(field, "expected a list of strings")
        return tuple(values)

    def section(self, field: str) -> _Fields:
        return _Fields(self.value.get(field), self._origin, f"{self._path}.{field}".strip("."))

    def items(self, field: str) -> list[_Fields]:
        path = f"{self._path}.{field}".strip(".")
        found = enumerate(self._list(field))
        return [_Fields(value, self._origin, f"{path}[{number}]") for number, value in found]

    def named(self, field: str, name: str, inner: str) -> _Fields:
        """Return the `inner` mapping of the item with this name in a list."""
        for item in self.items(field):
            if item.text("name") == name:
                return item.section(inner)
        names = ", ".join(repr(item.text("name")) for item in self.items(field)) or "none"
        raise self.error(field, f"no {inner} {name!r} (known: {names})")

    def source(self, field: str, base: Path) -> DataOrFile:
        """Return the inline data of `<field>-data`, or else the file `<field>`."""
        where = f"{self._path}.{field}"
        # Inline data take precedence, as in clientcmd.
        if inline := self.text(f"{field}-data"):
            try:
                data = base64.b64decode(inline, validate=True)
            except (binascii.Error, ValueError) as exc:
                raise self.error(f"{field}-data", f"not base64: {exc}") from exc
            return DataOrFile(data=data, field=f"{where}-data")
        if file := self.text(field):
            return DataOrFile(file=base / file, field=where)
        return DataOrFile()

    def _list(self, field: str) -> Sequence[Any]:
        value = self.value.get(field)
        if value is not None and not isinstance(value, list):
            raise self.error(field, f"expected a list, got {type(value).__name__}")
        return value or []


def _shown(url: str) -> str:
    """Return a URL without its password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
