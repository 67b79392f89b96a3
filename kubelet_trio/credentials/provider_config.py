"""The file behind `--image-credential-provider-config`: which programs are asked for logins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubelet_trio.credentials.accounts import TokenAttributes
from kubelet_trio.model import yaml_problem

_API = "kubelet.config.k8s.io/"
_CONFIG_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_EXEC_API = "credentialprovider.kubelet.k8s.io/"
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True)
class Provider:
    """One program, and the images it is asked for."""

    name: str
    match_images: tuple[str, ...]
    default_cache_duration: float  # seconds
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    tokens: TokenAttributes | None = None  # None: it is given none


def load_providers(path: Path) -> tuple[Provider, ...]:
    """Read a file, or a directory's files in the order of their names.

    Raises OSError, or ValueError naming file and field.
    """
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in (".json", ".yaml", ".yml"))
    providers = [provider for file in files for provider in _providers(file)]
    names = [provider.name for provider in providers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: more than one credential provider is named {name!r}")
    if not providers:
        raise ValueError(f"{path}: providers: at least one is required")
    return tuple(providers)


def parse_duration(text: Any) -> float:
    """Return the seconds of a Go duration such as `1h30m` or `0s`. Raises ValueError."""
    rest, seconds = str(text), 0.0
    if rest == "0":
        return 0.0
    while rest:
        number = rest[: len(rest) - len(rest.lstrip("0123456789."))]
        rest = rest[len(number) :]
        unit = next((u for u in ("ms", "h", "m", "s") if rest.startswith(u)), None)
        if unit is None or not number:
            raise ValueError(f"{text!r} is not a duration such as 1h30m")
        seconds += float(number) * _UNITS[unit]
        rest = rest[len(unit) :]
    return seconds


def _providers(file: Path) -> Iterator[Provider]:
    import yaml  # few nodes have such a file

    try:
        document = yaml.safe_load(file.read_text())
    except yaml.YAMLError as exc:
        raise ValueError(f"{file}: {yaml_problem(exc)}") from None
    if not isinstance(document, dict) or document.get("kind") != "CredentialProviderConfig":
        raise ValueError(f"{file}: kind: CredentialProviderConfig is expected")
    if document.get("apiVersion") not in [_API + version for version in _CONFIG_VERSIONS]:
        raise ValueError(f"{file}: apiVersion: {_API}v1 is expected")
    for number, entry in enumerate(document.get("providers") or ()):
        try:
            yield _provider(entry)
        except (ValueError, TypeError, KeyError) as exc:
            raise ValueError(f"{file}: providers[{number}].{exc}") from None


def _provider(entry: Mapping[str, Any]) -> Provider:
    name = entry.get("name") or ""
    if not name or name in (".", "..") or "/" in name or name != name.strip() or " " in name:
        raise ValueError(f"name: {name!r} is not a program's name")
    if unknown := entry.keys() - _FIELDS:
        raise ValueError(f"{min(unknown)}: unknown field")
    if not entry.get("matchImages"):
        raise ValueError("matchImages: at least one is required")
    if entry.get("defaultCacheDuration") is None:
        raise ValueError("defaultCacheDuration: required")
    version = entry.get("apiVersion") or ""
    if version not in [_EXEC_API + known for known in _CONFIG_VERSIONS]:
        raise ValueError(f"apiVersion: {_EXEC_API}v1 is expected")
    try:
        kept = parse_duration(entry["defaultCacheDuration"])
    except ValueError as exc:
        raise ValueError(f"defaultCacheDuration: {exc}") from None
    return Provider(
        name,
        tuple(entry["matchImages"]),
        kept,
        version,
        tuple(str(word) for word in entry.get("args") or ()),
        tuple((str(v["name"]), str(v["value"])) for v in entry.get("env") or ()),
        _token_attributes(entry.get("tokenAttributes"), version),
    )


_FIELDS = {
    "name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env", "tokenAttributes"
}  # fmt: skip


def _token_attributes(given: Any, version: str) -> TokenAttributes | None:
    """Return what a provider is to be given. Raises ValueError naming the field."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise ValueError("tokenAttributes: must be an object")
    if version != _EXEC_API + "v1":
        raise ValueError(f"tokenAttributes: only with apiVersion {_EXEC_API}v1")
    try:
        return _checked(given)
    except ValueError as exc:
        raise ValueError(f"tokenAttributes.{exc}") from None


def _checked(given: Mapping[str, Any]) -> TokenAttributes:
    if unknown := given.keys() - _TOKEN_FIELDS:
        raise ValueError(f"{min(unknown)}: unknown field")
    audience, required = given.get("serviceAccountTokenAudience"), given.get(_REQUIRE)
    if not audience or not isinstance(audience, str):
        raise ValueError("serviceAccountTokenAudience: a name is required")
    if not isinstance(required, bool):
        raise ValueError(f"{_REQUIRE}: true or false is required")
    if given.get("cacheType") not in _CACHE_TYPES:
        raise ValueError(f"cacheType: one of {', '.join(_CACHE_TYPES)} is required")
    keys = {field: tuple(given.get(field) or ()) for field in _ANNOTATIONS}
    for field, names in keys.items():
        if not isinstance(given.get(field) or [], list):
            raise ValueError(f"{field}: must be a list")
        for name in names:
            if not name or not isinstance(name, str):
                raise ValueError(f"{field}: {name!r} is not the key of an annotation")
            if names.count(name) > 1:
                raise ValueError(f"{field}: {name} is there twice")
    needed, optional = keys.values()
    if needed and not required:
        raise ValueError(f"{_ANNOTATIONS[0]}: only where {_REQUIRE} is true")
    if both := set(needed) & set(optional):
        raise ValueError(f"{_ANNOTATIONS[1]}: {min(both)} is required as well")
    return TokenAttributes(audience, required, given["cacheType"] == "Token", needed, optional)


_REQUIRE = "requireServiceAccount"
_CACHE_TYPES = ("ServiceAccount", "Token")
_ANNOTATIONS = ("requiredServiceAccountAnnotationKeys", "optionalServiceAccountAnnotationKeys")
_TOKEN_FIELDS = {"serviceAccountTokenAudience", "cacheType", _REQUIRE, *_ANNOTATIONS}
