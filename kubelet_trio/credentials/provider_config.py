"""Reads CredentialProviderConfig files (`--image-credential-provider-config`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubelet_trio.credentials.accounts import TokenAttributes
from kubelet_trio.credentials.matching import is_location
from kubelet_trio.durations import parse_duration
from kubelet_trio.model import check_yaml_depth, sha256, yaml_problem

_API = "kubelet.config.k8s.io/"
_CONFIG_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_EXEC_API = "credentialprovider.kubelet.k8s.io/"


@dataclass(frozen=True, slots=True)
class Provider:
    """One credential provider: its program, and the images that it is asked for."""

    name: str
    match_images: tuple[str, ...]
    default_cache_duration: float  # seconds
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    tokens: TokenAttributes | None = None  # None: it gets no tokens


def load_providers(path: Path) -> tuple[Provider, ...]:
    """Read a file, or the files of a directory in the order of their names. Blocks.

    Raises OSError, and ValueError naming file and field.
    """
    providers = [provider for file in _files(path) for provider in _providers(file)]
    for name, count in Counter(provider.name for provider in providers).items():
        if count > 1:
            raise ValueError(f"{path}: more than one credential provider is named {name!r}")
    if not providers:
        raise ValueError(f"{path}: providers: at least one is required")
    return tuple(providers)


def providers_hash(path: Path) -> str:
    """Return the hash of what `load_providers` reads, as the metric of it shows it. Blocks.

    Raises OSError.
    """
    contents = [file.read_bytes() for file in _files(path)]
    # With its length before each, as readCredentialProviderConfig in plugin/config.go.
    framed = b"".join(len(content).to_bytes(8) + content for content in contents)
    return f"sha256:{sha256(framed).hexdigest()}"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    named = (f for f in path.iterdir() if f.suffix in (".json", ".yaml", ".yml"))
    return sorted(f for f in named if not f.is_dir())


def cache_duration(value: Any) -> float:
    """Return a cache duration in seconds. Raises ValueError."""
    seconds = float(parse_duration(str(value)))
    if seconds < 0:
        raise ValueError(f"{value!r} is below 0")
    return seconds


def _providers(file: Path) -> Iterator[Provider]:
    import yaml  # loaded only on nodes with such a file

    try:
        text = file.read_text()
        check_yaml_depth(text)
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ValueError(f"{file}: {yaml_problem(exc)}") from None
    if not isinstance(document, dict) or document.get("kind") != "CredentialProviderConfig":
        raise ValueError(f"{file}: kind: CredentialProviderConfig is expected")
    version = document.get("apiVersion")
    if version not in [_API + known for known in _CONFIG_VERSIONS]:
        raise ValueError(f"{file}: apiVersion: {_API}v1 is expected")
    # Strict, as upstream's decoder of this file.
    if unknown := document.keys() - _DOCUMENT_FIELDS:
        raise ValueError(f"{file}: {min(map(str, unknown))}: unknown field")
    fields = _FIELDS if version == f"{_API}v1" else _FIELDS - {_TOKENS}
    entries = document.get("providers") or ()
    if not isinstance(entries, list | tuple):
        raise ValueError(f"{file}: providers: must be a list")
    for number, entry in enumerate(entries):
        try:
            yield _provider(entry, fields)
        except ValueError as exc:
            raise ValueError(f"{file}: providers[{number}].{exc}") from None


def _provider(entry: Any, fields: Set[str]) -> Provider:
    if not isinstance(entry, dict):
        raise ValueError("name: a provider must be an object")
    name = entry.get("name") or ""
    if not isinstance(name, str) or not _is_program(name):
        raise ValueError(f"name: {name!r} is not a program's name")
    if unknown := entry.keys() - fields:
        raise ValueError(f"{min(map(str, unknown))}: unknown field")
    images = _texts(entry, "matchImages")
    if not images:
        raise ValueError("matchImages: at least one is required")
    for image in images:
        if not is_location(image):
            raise ValueError(f"matchImages: {image!r} is not the name of an image or registry")
    if entry.get("defaultCacheDuration") is None:
        raise ValueError("defaultCacheDuration: required")
    version = entry.get("apiVersion") or ""
    if version not in [_EXEC_API + known for known in _CONFIG_VERSIONS]:
        raise ValueError(f"apiVersion: {_EXEC_API}v1 is expected")
    try:
        kept = cache_duration(entry["defaultCacheDuration"])
    except ValueError as exc:
        raise ValueError(f"defaultCacheDuration: {exc}") from None
    return Provider(
        name,
        images,
        kept,
        version,
        _texts(entry, "args"),
        _variables(entry.get("env")),
        _token_attributes(entry.get(_TOKENS), version),
    )


def _is_program(name: str) -> bool:
    # It is joined to the directory of programs, and must not lead out of it.
    is_one = "/" not in name and " " not in name and name == name.strip()
    return is_one and name not in ("", ".", "..")


def _texts(entry: Mapping[str, Any], field: str) -> tuple[str, ...]:
    given = entry.get(field) or []
    if not isinstance(given, list) or not all(isinstance(v, _SCALARS) for v in given):
        raise ValueError(f"{field}: must be a list of strings")
    return tuple(str(value) for value in given)


def _variables(given: Any) -> tuple[tuple[str, str], ...]:
    if given is not None and not isinstance(given, list):
        raise ValueError("env: must be a list")
    found = []
    for number, variable in enumerate(given or ()):
        if not isinstance(variable, dict) or not {"name", "value"} <= variable.keys():
            raise ValueError(f"env[{number}]: name and value are required")
        if unknown := variable.keys() - {"name", "value"}:
            raise ValueError(f"env[{number}].{min(map(str, unknown))}: unknown field")
        found.append((str(variable["name"]), str(variable["value"])))
    return tuple(found)


_SCALARS = str | int | float  # YAML's numbers and booleans count as text
_TOKENS = "tokenAttributes"  # only in v1 of the file
_DOCUMENT_FIELDS = {"kind", "apiVersion", "providers"}
_FIELDS = {
    "name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env", _TOKENS
}  # fmt: skip
# IsQualifiedName of k8s.io/apimachinery; of annotations, capitals count as small letters.
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_KEY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?[a-z0-9](?:[-_.a-z0-9]{{0,61}}[a-z0-9])?")


def _token_attributes(given: Any, version: str) -> TokenAttributes | None:
    """Read `tokenAttributes`. Raises ValueError naming the field."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise ValueError("tokenAttributes: must be an object")
    # KEP-4412 extended the requests of v1 only.
    if version != _EXEC_API + "v1":
        raise ValueError(f"tokenAttributes: only with apiVersion {_EXEC_API}v1")
    try:
        return _checked(given)
    except ValueError as exc:
        raise ValueError(f"tokenAttributes.{exc}") from None


def _checked(given: Mapping[str, Any]) -> TokenAttributes:
    if unknown := given.keys() - _TOKEN_FIELDS:
        raise ValueError(f"{min(map(str, unknown))}: unknown field")
    audience, required = given.get("serviceAccountTokenAudience"), given.get(_REQUIRE)
    if not audience or not isinstance(audience, str):
        raise ValueError("serviceAccountTokenAudience: a name is required")
    if not isinstance(required, bool):
        raise ValueError(f"{_REQUIRE}: true or false is required")
    if given.get("cacheType") not in list(_CACHE_TYPES):
        raise ValueError(f"cacheType: one of {', '.join(_CACHE_TYPES)} is required")
    keys: dict[str, tuple[str, ...]] = {}
    for field in _ANNOTATIONS:
        names = given.get(field) or []
        if not isinstance(names, list):
            raise ValueError(f"{field}: must be a list")
        seen: set[str] = set()
        for name in names:
            if not isinstance(name, str) or not _KEY.fullmatch(name.lower()):
                raise ValueError(f"{field}: {name!r} is not the key of an annotation")
            if name in seen:
                raise ValueError(f"{field}: {name} is listed twice")
            seen.add(name)
        keys[field] = tuple(names)
    needed, optional = keys.values()
    # Upstream's validation: without an account there are no annotations to require.
    if needed and not required:
        raise ValueError(f"{_ANNOTATIONS[0]}: only where {_REQUIRE} is true")
    if both := set(needed) & set(optional):
        raise ValueError(f"{_ANNOTATIONS[1]}: {min(both)} is required as well")
    return TokenAttributes(audience, required, given["cacheType"] == "Token", needed, optional)


_REQUIRE = "requireServiceAccount"
_CACHE_TYPES = ("ServiceAccount", "Token")
_ANNOTATIONS = ("requiredServiceAccountAnnotationKeys", "optionalServiceAccountAnnotationKeys")
_TOKEN_FIELDS = {"serviceAccountTokenAudience", "cacheType", _REQUIRE, *_ANNOTATIONS}
