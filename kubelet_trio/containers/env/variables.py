"""A container's environment, and its command and args expanded with it. Pure.

Objects that variables come from are passed in (`objects.ObjectView`). `envFrom` comes first, then
`env`, each in the order of declaration. A variable may refer to earlier ones; the last one of a
name wins.
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

from kubelet_trio.containers.env.downward import PodFacts, field_value, resource_value
from kubelet_trio.containers.env.expansion import MAX_VALUE, MAX_VALUES, expand, expand_from
from kubelet_trio.containers.env.files import EnvFileValues
from kubelet_trio.containers.errors import ContainerConfigError
from kubelet_trio.model import pod_key
from kubelet_trio.objects import (
    NO_OBJECTS,
    ObjectError,
    ObjectView,
    config_map_key,
    secret_content,
    secret_key,
)

# Printable ASCII without "=": KEP-4369, stable since Kubernetes 1.34.
_NAME = re.compile(r"[ -<>-~]+")
_UNREADABLE = "couldn't parse env file"  # as makeEnvironmentVariables; what follows it is ours


EnvFile = tuple[str, str]  # volume and path in it


class CommandLine(NamedTuple):
    """Replaces an image's entrypoint and default arguments; an empty list keeps the image's."""

    command: list[str]
    args: list[str]


@dataclass(frozen=True, slots=True)
class Environment:
    """A container's variables, and an event message for each source with invalid names.

    Bytes of a secret that are not UTF-8 are lone surrogates here: `encode_value` restores them.
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

    Args:
        pod: the pod.
        container: the container.
        facts: values for the downward API.
        objects: config maps and secrets.
        services: variables of services; other variables may refer to them or replace them.
        files: the files of `fileKeyRef` that exist.

    Raises:
        ContainerConfigError: something that a variable needs is missing (the text is the Go
            kubelet's), or the variables are larger than Linux allows.
    """
    warnings: list[str] = []
    sources = _Sources(pod, container, facts or PodFacts(), objects, files or {})
    try:
        variables = _Variables(services or {})
        of_services = set(variables)
        for source in container.envFrom or ():
            added, skipped = _named_values(source, sources)
            of_services.difference_update(added)
            for name, value in added.items():
                variables.put(name, value)
            if skipped:
                warnings.append(_skipped(source, sources.namespace, skipped))
        for variable in container.env or ():
            # As upstream, `$(NAME)` in the value of NAME does not see the service's variable.
            if variable.name in of_services:
                of_services.remove(variable.name)
                variables.drop(variable.name)
            expanded = _value(variable, variables, sources)
            if expanded is not None:
                variables.put(variable.name, expanded)
    except (ObjectError, ValueError) as exc:
        raise ContainerConfigError(str(exc)) from exc
    return Environment(variables, tuple(warnings))


class _Variables(dict[str, str]):
    """Variables with the size limits of execve(2), so that an error names the variable."""

    def __init__(self, initial: Mapping[str, str]) -> None:
        super().__init__()
        self._left = MAX_VALUES
        for name, value in initial.items():
            self.put(name, value)

    def put(self, name: str, value: str) -> None:
        """Set a variable. Raises `ContainerConfigError` if it is too large."""
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
        """Remove a variable if it exists."""
        if name in self:
            self._left += _entry_size(name, self.pop(name))


def _entry_size(name: str, value: str) -> int:
    return len(name) + _size(value) + 2  # "=" and the final null byte


def _size(value: str) -> int:
    return len(value) if value.isascii() else len(encode_value(value))


def encode_value(value: str) -> bytes:
    """Return a variable's value as bytes for the runtime."""
    return value.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of `valueFrom` and `envFrom` of one container."""

    pod: Pod
    container: Container
    facts: PodFacts
    objects: ObjectView
    files: Mapping[EnvFile, EnvFileValues]

    @property
    def namespace(self) -> str:
        return pod_key(self.pod).namespace

    def config_map(self, name: str | None, optional: bool | None) -> dict[str, str] | None:
        """Return a config map's `data`, without `binaryData`; None if optional and missing."""
        key = config_map_key(self.namespace, name)
        found = self.objects.get_optional(key, ConfigMap, optional=optional)
        return None if found is None else dict(found.data or {})

    def secret(self, name: str | None, optional: bool | None) -> dict[str, str] | None:
        """Return a secret's content; None if optional and missing."""
        key = secret_key(self.namespace, name)
        found = self.objects.get_optional(key, Secret, optional=optional)
        if found is None:
            return None
        return {k: v.decode("utf-8", "surrogateescape") for k, v in secret_content(found).items()}


def _named_values(source: EnvFromSource, sources: _Sources) -> tuple[dict[str, str], list[str]]:
    """Return the variables of one `envFrom` item, and the keys that are no valid names."""
    # Upstream expands `$(NAME)` in `env` only, not in values from `envFrom`.
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
    """Return a variable's value; None if it is optional and missing."""
    # As upstream, a value hides `valueFrom`; validation refuses the combination.
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
        raise ContainerConfigError(f"{_UNREADABLE}: volume {ref.volumeName} has no file {ref.path}")
    try:
        value = found.get(ref.key)
    except ValueError as exc:
        why = f"file {ref.path} of volume {ref.volumeName}: {exc}"
        raise ContainerConfigError(f"{_UNREADABLE}: {why}") from exc
    if value is None and not ref.optional:
        raise ContainerConfigError(
            f'environment variable key "{ref.key}" not found in file "{ref.path}" '
            f"of volume {ref.volumeName}"
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

    Raises `ContainerConfigError` naming a word that becomes longer than Linux allows.
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
    """Return a volume mount's path in its volume, with `subPathExpr` expanded; "": the volume.

    Raises `ContainerConfigError` if the expression names a variable without a value.
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
