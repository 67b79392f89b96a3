"""A container's environment, and its command and args expanded with it.

Pure: the objects that variables come from were read before (`objects.ObjectView`). What
`envFrom` brings comes first, `env` after it, in the order of declaration; a later variable
of a name wins and may refer to any before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lightkube.models.core_v1 import (
    ConfigMap,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    Pod,
    Secret,
    VolumeMount,
)

from kubelet_trio.containers.downward import PodFacts, field_value, resource_value
from kubelet_trio.containers.env_file import EnvFileValues
from kubelet_trio.containers.errors import ContainerConfigError
from kubelet_trio.containers.expansion import MAX_VALUE, MAX_VALUES, expand, expand_from
from kubelet_trio.model import pod_key
from kubelet_trio.objects import (
    NO_OBJECTS,
    ObjectError,
    ObjectView,
    config_map_key,
    secret_content,
    secret_key,
)

# The relaxed rule of Kubernetes 1.34: printable ASCII without =.
_NAME = re.compile(r"[ -<>-~]+")


EnvFile = tuple[str, str]  # volume and path in it


class CommandLine(NamedTuple):
    """What replaces an image's entrypoint and its default arguments; empty: the image's own."""

    command: list[str]
    args: list[str]


@dataclass(frozen=True, slots=True)
class Environment:
    """A container's variables, and a line for the pod's events on each source cut short.

    A byte that is no UTF-8 (of a secret) is a lone surrogate here: `encode_value` restores it.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # reason InvalidEnvironmentVariableNames


def container_env(
    pod: Pod,
    container: Container,
    facts: PodFacts | None = None,
    objects: ObjectView = NO_OBJECTS,
    services: Mapping[str, str] | None = None,
    files: Mapping[EnvFile, EnvFileValues] | None = None,
) -> Environment:
    """Return the environment of a container.

    `files` are those that variables come from, as far as they are there.

    `services` are the variables of the services around the pod: others may refer to them, and
    any other of a name replaces one.

    Raises `ContainerConfigError` where something that a variable needs is not there (its
    text is the one of the Go kubelet), or the variables are larger than a program can be given.
    """
    warnings: list[str] = []
    sources = _Sources(pod, container, facts or PodFacts(), objects, files or {})
    try:
        variables = _Variables(services or {})
        around = set(variables)
        for source in container.envFrom or ():
            added, skipped = _named_values(source, sources)
            around.difference_update(added)
            for name, value in added.items():
                variables.put(name, value)
            if skipped:
                warnings.append(_skipped(source, sources.namespace, skipped))
        for variable in container.env or ():
            if variable.name in around:
                around.remove(variable.name)
                variables.drop(variable.name)
            expanded = _value(variable, variables, sources)
            if expanded is not None:
                variables.put(variable.name, expanded)
    except (ObjectError, ValueError) as exc:
        raise ContainerConfigError(str(exc)) from exc
    return Environment(variables, tuple(warnings))


class _Variables(dict[str, str]):
    """Variables, as many as a program can be started with: execve(2) says less of more."""

    def __init__(self, around: Mapping[str, str]) -> None:
        super().__init__()
        self._left = MAX_VALUES
        for name, value in around.items():
            self.put(name, value)

    def put(self, name: str, value: str) -> None:
        """Set a variable. Raises `ContainerConfigError` naming the one that is too large."""
        if _size(value) > MAX_VALUE:
            raise ContainerConfigError(f"env {name}: has more than {MAX_VALUE} bytes")
        before = _entry_size(name, self[name]) if name in self else 0
        self._left -= _entry_size(name, value) - before
        if self._left < 0:
            raise ContainerConfigError(
                f"env {name}: with it the variables have more than {MAX_VALUES} bytes together"
            )
        self[name] = value

    def drop(self, name: str) -> None:
        """Take a variable away; none of that name is no error."""
        if name in self:
            self._left += _entry_size(name, self.pop(name))


def _entry_size(name: str, value: str) -> int:
    return len(name) + _size(value) + 2  # "=" and the byte at its end


def _size(value: str) -> int:
    return len(value) if value.isascii() else len(encode_value(value))


def encode_value(value: str) -> bytes:
    """Return a variable's value as the runtime is given it."""
    return value.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class _Sources:
    """What `valueFrom` and `envFrom` of one container may lead to."""

    pod: Pod
    container: Container
    facts: PodFacts
    objects: ObjectView
    files: Mapping[EnvFile, EnvFileValues]

    @property
    def namespace(self) -> str:
        return pod_key(self.pod).namespace

    def config_map(self, name: str | None, optional: bool | None) -> dict[str, str] | None:
        """Return the text of a config map (binary data is for volumes), None if it may lack."""
        key = config_map_key(self.namespace, name)
        found = self.objects.get_optional(key, ConfigMap, optional=optional)
        return None if found is None else dict(found.data or {})

    def secret(self, name: str | None, optional: bool | None) -> dict[str, str] | None:
        key = secret_key(self.namespace, name)
        found = self.objects.get_optional(key, Secret, optional=optional)
        if found is None:
            return None
        return {k: v.decode("utf-8", "surrogateescape") for k, v in secret_content(found).items()}


def _named_values(source: EnvFromSource, sources: _Sources) -> tuple[dict[str, str], list[str]]:
    """Return the variables that one `envFrom` item brings, and the names that are none."""
    values: dict[str, str] | None = None
    if source.configMapRef is not None:
        values = sources.config_map(source.configMapRef.name, source.configMapRef.optional)
    elif source.secretRef is not None:
        values = sources.secret(source.secretRef.name, source.secretRef.optional)
    named = {f"{source.prefix or ''}{key}": value for key, value in (values or {}).items()}
    skipped = sorted(name for name in named if not _NAME.fullmatch(name))
    return {name: value for name, value in named.items() if name not in skipped}, skipped


def _skipped(source: EnvFromSource, namespace: str, names: list[str]) -> str:
    if source.configMapRef is not None:
        what = f"configMap {namespace}/{source.configMapRef.name}"
    else:
        what = f"secret {namespace}/{source.secretRef.name if source.secretRef else ''}"
    return (
        f"Keys [{', '.join(names)}] from the EnvFrom {what} were skipped since they are "
        "considered invalid environment variable names."
    )


def _value(variable: EnvVar, variables: Mapping[str, str], sources: _Sources) -> str | None:
    """Return a variable's value; None where it is optional and there is none."""
    if variable.value or variable.valueFrom is None:
        try:
            return expand_from(variable.value or "", variables)
        except ValueError as exc:
            raise ContainerConfigError(f"env {variable.name}: {exc}") from exc
    source = variable.valueFrom
    if source.fieldRef is not None:
        return field_value(sources.pod, source.fieldRef.fieldPath, sources.facts)
    if source.resourceFieldRef is not None:
        ref = source.resourceFieldRef
        return resource_value(sources.pod, sources.container, ref, sources.facts)
    if source.fileKeyRef is not None:
        return _file_value(source.fileKeyRef, sources)
    return _key_value(variable, source, sources)


def _file_value(ref: FileKeySelector, sources: _Sources) -> str | None:
    found = sources.files.get((ref.volumeName, ref.path))
    if found is None:
        if ref.optional:
            return None
        raise ContainerConfigError(f"couldn't find file {ref.path} in volume {ref.volumeName}")
    try:
        value = found.get(ref.key)
    except ValueError as exc:
        raise ContainerConfigError(f"file {ref.path} in volume {ref.volumeName}: {exc}") from exc
    if value is None and not ref.optional:
        raise ContainerConfigError(
            f"couldn't find key {ref.key} in file {ref.path} in volume {ref.volumeName}"
        )
    return value


def _key_value(variable: EnvVar, source: EnvVarSource, sources: _Sources) -> str | None:
    if source.configMapKeyRef is not None:
        what, ref = "ConfigMap", source.configMapKeyRef
        values = sources.config_map(ref.name, ref.optional)
        key, name, optional = ref.key, ref.name, ref.optional
    elif source.secretKeyRef is not None:
        what, secret = "Secret", source.secretKeyRef
        values = sources.secret(secret.name, secret.optional)
        key, name, optional = secret.key, secret.name, secret.optional
    else:
        raise ContainerConfigError(f"env {variable.name}: this kind of valueFrom is not supported")
    if values is None or (key not in values and optional):
        return None
    if key not in values:
        raise ContainerConfigError(f"couldn't find key {key} in {what} {sources.namespace}/{name}")
    return values[key]


def command_line(container: Container, variables: Mapping[str, str]) -> CommandLine:
    """Return command and args with references to the container's variables expanded.

    Raises `ContainerConfigError` naming the word that becomes longer than Linux takes.
    """
    return CommandLine(
        list(_expanded("command", container.command, variables)),
        list(_expanded("args", container.args, variables)),
    )


def _expanded(field: str, words: list[str] | None, variables: Mapping[str, str]) -> Iterator[str]:
    left = MAX_VALUES
    for index, word in enumerate(words or ()):
        try:
            expanded = expand_from(word, variables, min(left, MAX_VALUE))
        except ValueError as exc:
            raise ContainerConfigError(f"{field}[{index}]: {exc}") from exc
        left -= len(expanded) + 1
        yield expanded


def sub_path(mount: VolumeMount, variables: Mapping[str, str]) -> str:
    """Return a volume mount's path inside its volume, `subPathExpr` expanded; empty: all of it.

    Raises `ContainerConfigError` where the expression names a variable without a value.
    """
    if not mount.subPathExpr:
        return mount.subPath or ""
    missing: set[str] = set()

    def lookup(name: str) -> str:
        value = variables.get(name, "")
        if not value:
            missing.add(name)
        return value

    try:
        expanded = expand(mount.subPathExpr, lookup)
    except ValueError as exc:
        raise ContainerConfigError(f"subPathExpr of volume mount {mount.name}: {exc}") from exc
    if missing:
        raise ContainerConfigError(f"missing value for {', '.join(sorted(missing))}")
    return expanded
