"""What recordings leave out: values that are secret, or may be.

    Secret                      every value; the names of keys stay
    ConfigMap                   every value, likewise: nobody's decision depends on one
    env of a manifest           values of names that look like secrets
    env of CreateContainer      every value: some come from Secrets, under any name. A keyed digest
                                stands for those of variables that device plugins give
    answers of device plugins   every value of the environment: a keyed digest stands for it; values
                                of annotations of names that look like secrets
    command, args               of a manifest: values after flags and names that look like secrets;
                                of CreateContainer: all, because `$(NAME)` has been expanded in them
    HTTP headers of probes      values of names that look like secrets, `Authorization`, `Cookie`
    annotations                 values of names that look like secrets, and
                                `kubectl.kubernetes.io/last-applied-configuration`
    options and attributes      of FlexVolumes, CSI volumes and StorageClasses: values of names that
                                look like secrets; parameters of resource claims: all
    managedFields               all
    PullImage                   the credentials
    CSI calls                   secrets and contexts
    mount options               values of names that look like secrets
    ExecSync                    the command and its output
    free text                   errors, messages of statuses: values after names that look like
                                secrets
    everywhere                  user and password in URLs, private keys in PEM, bearer and basic
                                credentials, JSON web tokens

A name looks like a secret if it contains password, passwd, pwd, secret, token, credential, a key
of an API or for access, signing or encryption, private, auth, cookie, dsn or a connection string.

Objects come as `msgspec.to_builtins` makes them, are changed in place, and returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any

import msgspec

LEFT_OUT = "*left out*"
# What stands for the values of Secrets and ConfigMaps: also valid JSON, as registry logins are.
_VALUE, _VALUE_BASE64 = "{}", "e30="
_LEFT_OUT_BASE64 = "KmxlZnQgb3V0Kg=="

_NAMES = (
    r"pass(?:word|wd|phrase|code)?\b|passw|passphrase|pwd|secret|token|credential|"
    r"(?:api|access|sign(?:ing)?|encrypt(?:ion)?|account|client|ssh|master|shared)[_.-]?key|"
    r"private|auth|cookie|dsn\b|conn(?:ection)?[_.-]?str|salt\b|_pass(?:_|$)|_key$|^key$|^pass$"
)
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_SHORT = 100  # characters of a name that is remembered: texts of pods are not to fill the memory
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

# `--db-password=x`, `TOKEN: x`, `password="x y"` within a text: the name with its sign, the value.
# Each expression begins only where a word does, and gives nothing back (`++`): these are the texts
# of pods, and what is tried again would take the square of their length.
_NAMED = re.compile(r"""(?<![\w.-])[\w.-]++["']?\s*+[=:]\s*+""")
_ASSIGNED = re.compile(
    r"pass|pwd|secret|token|credential|[_.-]?key|private|auth|cookie|dsn", re.IGNORECASE
)
_VALUE_OF = re.compile(
    r""""[^"]*+"?|'[^']*+'?|(?:(?:bearer|basic)\s++)?[^\s"',;&]++""", re.IGNORECASE
)
# In encoded JSON: quotes end a value, and line breaks are `\n`.
_ANYWHERE = re.compile(
    rb"""(?P<url>(?<![a-zA-Z0-9+.-])[a-zA-Z0-9+.-]++://)[^/\s"\\@?#]++@"""
    rb"""|-----BEGIN (?:[A-Z]{1,20} ){0,3}PRIVATE KEY-----"""
    rb"""[^"]*?(?:-----END (?:[A-Z]{1,20} ){0,3}PRIVATE KEY-----|(?=")|\Z)"""
    rb"""|(?P<scheme>\b(?:[Bb]earer|[Bb]asic) ++)[A-Za-z0-9+/=._~-]{8,}+"""
    rb"""|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]++\.[A-Za-z0-9_-]*+"""
)
# A quick look: most bodies have none of them. Many have URLs, each container's id for one, and next
# to none a user in them.
_HINTS = (b"PRIVATE KEY", b"earer ", b"asic ", b"eyJ")
_USER = re.compile(rb"""://[^/\s"\\@?#]++@""")


def looks_secret(name: str) -> bool:
    """Whether the value of this name is left out."""
    if len(name) <= _SHORT:
        return _short_looks_secret(name)
    return _SECRET_NAME.search(name) is not None


@lru_cache(1024)  # the same names come with each object, and a look takes 20 us
def _short_looks_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def mask_text(text: str) -> str:
    """Return a text without what is assigned to names that look like secrets."""
    if "=" not in text and ":" not in text:
        return text
    parts: list[str] = []
    done = 0
    for named in _NAMED.finditer(text):
        # A name within a value that was left out is none.
        if named.start() >= done and _ASSIGNED.search(named[0]):
            value = _VALUE_OF.match(text, named.end())
            if value is not None:
                parts += (text[done : named.end()], LEFT_OUT)
                done = value.end()
    return "".join((*parts, text[done:]))


def mask_bytes(body: bytes) -> bytes:
    """Return encoded JSON without what looks like a secret wherever it stands."""
    if not any(hint in body for hint in _HINTS) and _USER.search(body) is None:
        return body
    return _ANYWHERE.sub(_without, body)


def _without(found: re.Match[bytes]) -> bytes:
    if found["url"] is not None:
        return found["url"] + LEFT_OUT.encode() + b"@"
    return (found["scheme"] or b"") + LEFT_OUT.encode()


def mask_names(values: Any) -> None:
    """Mask the values of a map whose names look like secrets."""
    if isinstance(values, dict):
        for name in values:
            if values[name] and looks_secret(name):
                values[name] = LEFT_OUT


def mask_annotations(values: Any) -> None:
    """Mask the annotations of an object, a sandbox or a container."""
    if not isinstance(values, dict):
        return
    mask_names(values)
    values.pop(_LAST_APPLIED, None)
    for name, text in values.items():
        if name.endswith("Handler") and isinstance(text, str):  # of a container: a hook, as JSON
            values[name] = _mask_json_hook(text)


def _mask_json_hook(text: str) -> str:
    try:
        hook = msgspec.json.decode(text)
    except ValueError:
        return LEFT_OUT
    mask_handler(hook)
    return msgspec.json.encode(hook).decode()


def mask_words(words: Any) -> None:
    """Mask a command or its arguments."""
    if not isinstance(words, list):
        return
    follows = False
    for place, word in enumerate(words):
        if not isinstance(word, str):
            continue
        if follows and not word.startswith("-"):
            words[place] = LEFT_OUT
        else:
            words[place] = mask_text(word)
        follows = word.startswith("-") and "=" not in word and looks_secret(word.lstrip("-"))


def mask_handler(handler: Any) -> None:
    """Mask a probe or a hook."""
    if not isinstance(handler, dict):
        return
    mask_words((handler.get("exec") or {}).get("command"))
    request = handler.get("httpGet") or {}
    for header in request.get("httpHeaders") or ():
        if looks_secret(header.get("name") or ""):
            header["value"] = LEFT_OUT
    if request.get("path"):
        request["path"] = mask_text(request["path"])


def mask_container(container: Any) -> None:
    """Mask a container of a pod's spec."""
    for variable in container.get("env") or ():
        if variable.get("value") and looks_secret(variable.get("name") or ""):
            variable["value"] = LEFT_OUT
        elif variable.get("value"):
            variable["value"] = mask_text(variable["value"])
    mask_words(container.get("command"))
    mask_words(container.get("args"))
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        mask_handler(container.get(name))
    lifecycle = container.get("lifecycle") or {}
    mask_handler(lifecycle.get("postStart"))
    mask_handler(lifecycle.get("preStop"))


def mask_metadata(meta: Any) -> None:
    """Mask an object's metadata."""
    if isinstance(meta, dict):
        mask_annotations(meta.get("annotations"))
        meta.pop("managedFields", None)


def mask_pod(pod: Any) -> Any:
    """Mask a core/v1 Pod."""
    if not isinstance(pod, dict):
        return pod
    mask_metadata(pod.get("metadata"))
    spec = pod.get("spec") or {}
    for name in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(name) or ():
            mask_container(container)
    for volume in spec.get("volumes") or ():
        mask_volume_source(volume)
    mask_status(pod.get("status"))
    return pod


def mask_status(status: Any) -> Any:
    """Mask a core/v1 PodStatus: the messages in it are texts of programs and registries."""
    return mask_messages(status)


def mask_messages(value: Any) -> Any:
    """Mask the texts named `message` in an object, at every depth."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "message" and isinstance(item, str):
                value[name] = mask_text(item)
            elif isinstance(item, dict | list):
                mask_messages(item)
    elif isinstance(value, list):
        for item in value:
            mask_messages(item)
    return value


def mask_volume_source(source: Any) -> None:
    """Mask a volume of a pod, or the spec of a PersistentVolume."""
    mask_names((source.get("flexVolume") or {}).get("options"))
    mask_names((source.get("csi") or {}).get("volumeAttributes"))
    template = ((source.get("ephemeral") or {}).get("volumeClaimTemplate") or {}).get("metadata")
    mask_metadata(template)
    mask_options(source.get("mountOptions"))


def mask_options(options: Any) -> None:
    """Mask a list of mount options, in place."""
    if isinstance(options, list):
        for place, option in enumerate(options):
            name, sign, _ = option.partition("=")
            if sign and looks_secret(name):
                options[place] = f"{name}={LEFT_OUT}"


def mask_object(value: Any, kind: str) -> Any:
    """Mask an object that pods refer to."""
    mask_metadata(value.get("metadata"))
    if kind == "Node" and isinstance(value.get("status"), dict):
        value["status"].pop("images", None)  # long, and nothing decides by them
    if kind in ("Secret", "ConfigMap"):
        # The values of a Secret's `data` are base64, those of a ConfigMap's are not.
        for name in ("data", "stringData", "binaryData"):
            is_plain = name == "stringData" or (name, kind) == ("data", "ConfigMap")
            if value.get(name):
                value[name] = dict.fromkeys(value[name], _VALUE if is_plain else _VALUE_BASE64)
    spec = value.get("spec")
    if isinstance(spec, dict):
        mask_volume_source(spec)
        mask_devices(spec)
    mask_names(value.get("parameters"))
    mask_options(value.get("mountOptions"))
    return mask_messages(value)


def mask_devices(value: Any) -> None:
    """Mask the drivers' own parameters in a claim of devices, at every depth."""
    if isinstance(value, dict):
        opaque = value.get("opaque")
        if isinstance(opaque, dict) and "parameters" in opaque:
            opaque["parameters"] = {}
        items: Iterable[Any] = value.values()
    else:
        items = value
    for item in items:
        if isinstance(item, dict | list):
            mask_devices(item)


def mask_record(record: Any) -> Any:
    """Mask the record of a pod."""
    mask_pod(record.get("pod"))
    mask_pod(record.get("returns"))
    for container in record.get("added") or ():
        mask_container(container)
    return mask_messages(record)


def _no_mark(name: str, value: str) -> str:
    return _LEFT_OUT_BASE64


def mask_sandbox_config(config: Any) -> Any:
    """Mask a PodSandboxConfig."""
    mask_annotations(config.get("annotations"))
    return config


def mask_container_config(
    config: Any, marked: Collection[str] = (), mark: Callable[[str, str], str] = _no_mark
) -> Any:
    """Mask a ContainerConfig.

    `mark` returns what stands for the value of a variable whose name is in `marked`, given the name
    and the value in base64.
    """
    mask_annotations(config.get("annotations"))
    for variable in config.get("envs") or ():
        name = variable["key"]
        variable["value"] = mark(name, variable["value"]) if name in marked else _LEFT_OUT_BASE64
    config["command"] = [LEFT_OUT] * bool(config.get("command"))
    config["args"] = [LEFT_OUT] * bool(config.get("args"))
    return config


def mask_runtime_object(value: Any) -> Any:
    """Mask the status of a sandbox or container, or its entry in a list."""
    mask_annotations(value.get("annotations"))
    if value.get("message"):
        value["message"] = mask_text(value["message"])
    return value


Mask = Callable[[Any], Any]
