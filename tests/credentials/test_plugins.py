"""Programs are real ones here: shell scripts that count their runs."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import trio

from kubelet_trio.credentials import (
    Login,
    Plugin,
    Provider,
    ProviderError,
    TokenAttributes,
    load_providers,
    make_plugins,
    providers_hash,
)
from kubelet_trio.model import Meter

API = "credentialprovider.kubelet.k8s.io/v1"


def answer(cache: str = "Image", duration: str = '"cacheDuration": "1h",') -> str:
    return (
        f'{{"kind": "CredentialProviderResponse", "apiVersion": "{API}", "cacheKeyType": "{cache}",'
        f' {duration} "auth": {{"*.example": {{"username": "u", "password": "p"}}}}}}'
    )


def make(directory: Path, script: str, kept: float = 0.0, meter: Meter | None = None) -> Plugin:
    program = directory / "provider"
    program.write_text(f"#!/bin/sh\ncat >>{directory}/asked; echo >>{directory}/asked\n{script}\n")
    program.chmod(0o755)
    provider = Provider("provider", ("*.example",), kept, API, ("--flag",), (("NAME", "value"),))
    return make_plugins([provider], directory, meter)[0]


def odd(**fields: object) -> str:
    """Return an answer with fields as no program should fill them."""
    return json.dumps({"kind": "CredentialProviderResponse", "apiVersion": API} | fields)


async def test_its_runs_are_measured_and_its_failures_counted(tmp_path: Path) -> None:
    meter = Meter()
    failed = "kubelet_credential_provider_plugin_errors_total"
    await make(tmp_path, f"echo '{answer()}'", meter=meter).logins("reg.example/app")
    assert dict(meter.counters(failed)) == {}
    with pytest.raises(ProviderError):
        await make(tmp_path, "exit 3", meter=meter).logins("reg.example/app")
    ((labels, took),) = meter.histograms("kubelet_credential_provider_plugin_duration")
    assert (labels, took.count) == (("provider",), 2)
    assert dict(meter.counters(failed)) == {("provider",): 1}


def asked(directory: Path) -> list[str]:
    file = directory / "asked"
    return file.read_text().split("\n")[:-1] if file.exists() else []


async def test_a_program_is_asked_with_its_arguments_and_environment(tmp_path: Path) -> None:
    plugin = make(tmp_path, f"echo \"$1 $NAME\" >{tmp_path}/told; echo '{answer()}'")
    assert await plugin.logins("reg.example/app") == {"*.example": Login("u", "p")}
    assert (tmp_path / "told").read_text() == "--flag value\n"
    assert asked(tmp_path) == [
        f'{{"kind":"CredentialProviderRequest","apiVersion":"{API}","image":"reg.example/app"}}'
    ]


@pytest.mark.parametrize(("cache", "others"), [("Image", 3), ("Registry", 2), ("Global", 1)])
async def test_answers_are_kept_as_the_program_says(
    tmp_path: Path, cache: str, others: int
) -> None:
    plugin = make(tmp_path, f"echo '{answer(cache)}'")
    for image in ("a.example/one", "a.example/one", "a.example/two", "b.example/one"):
        assert await plugin.logins(image)
    assert len(asked(tmp_path)) == others


async def test_without_a_duration_the_configured_one_counts_and_zero_keeps_nothing(
    tmp_path: Path,
) -> None:
    plugin = make(tmp_path, f"echo '{answer(duration='')}'", kept=0.0)
    await plugin.logins("reg.example/app")
    await plugin.logins("reg.example/app")
    assert len(asked(tmp_path)) == 2


async def test_images_of_others_ask_nobody(tmp_path: Path) -> None:
    plugin = make(tmp_path, "exit 1")
    assert await plugin.logins("docker.io/library/busybox") == {}
    assert asked(tmp_path) == []


async def test_two_pods_of_one_image_ask_once(tmp_path: Path) -> None:
    plugin = make(tmp_path, f"echo '{answer()}'")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(plugin.logins, "reg.example/app")
    assert len(asked(tmp_path)) == 1


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("echo no login >&2; exit 3", "credential provider provider exited 3: no login"),
        ("echo nothing", "credential provider provider: "),
        ("echo '{}'", "not a CredentialProviderResponse"),
        (f"echo '{'[' * 100_000}'", "credential provider provider: maximum recursion"),
        (f"echo '{odd(cacheKeyType=[])}'", r"cacheKeyType: \[\] is not one of"),
        (f"echo '{odd(cacheKeyType='Image', auth=[1])}'", "auth: not an object of logins"),
        (
            f"echo '{answer('Other')}'",
            "cacheKeyType: 'Other' is not one of Image, Registry, Global",
        ),
    ],
)
async def test_a_bad_answer_is_an_error_that_names_the_program(
    tmp_path: Path, script: str, wanted: str
) -> None:
    with pytest.raises(ProviderError, match=wanted):
        await make(tmp_path, script).logins("reg.example/app")


async def test_null_is_no_password(tmp_path: Path) -> None:
    printed = odd(cacheKeyType="Image", auth={"reg.example": {"username": None, "password": None}})
    logins = await make(tmp_path, f"echo '{printed}'").logins("reg.example/app")
    assert logins == {"reg.example": Login()}


CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
  - name: provider
    apiVersion: credentialprovider.kubelet.k8s.io/v1
    matchImages: ["*.example"]
    defaultCacheDuration: 1h30m
    env: [{name: A, value: b}]
    tokenAttributes:
      serviceAccountTokenAudience: reg
      cacheType: Token
      requireServiceAccount: true
      requiredServiceAccountAnnotationKeys: [a]
      optionalServiceAccountAnnotationKeys: [b]
"""


def test_the_configuration_is_read_from_a_file_or_a_directory(tmp_path: Path) -> None:
    (tmp_path / "10.yaml").write_text(CONFIG)
    (tmp_path / "20.yaml").write_text(CONFIG.replace("name: provider", "name: other"))
    tokens = TokenAttributes("reg", True, True, ("a",), ("b",))
    wanted = Provider("provider", ("*.example",), 5400.0, API, (), (("A", "b"),), tokens)
    assert load_providers(tmp_path / "10.yaml") == (wanted,)
    assert [p.name for p in load_providers(tmp_path)] == ["provider", "other"]
    # The label of kubelet_credential_provider_config_info.
    before = providers_hash(tmp_path)
    assert re.fullmatch("sha256:[0-9a-f]{64}", before)
    with (tmp_path / "10.yaml").open("a") as file:
        file.write("# a remark\n")
    assert providers_hash(tmp_path) != before


def test_a_key_of_an_annotation_may_have_a_prefix_and_capitals(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text(CONFIG.replace("Keys: [a]", "Keys: [Cloud.example/Role_ARN.1]"))
    (provider,) = load_providers(file)
    assert provider.tokens is not None
    assert provider.tokens.required_annotations == ("Cloud.example/Role_ARN.1",)


def test_the_hash_of_the_configuration_is_the_go_kubelets(tmp_path: Path) -> None:
    (tmp_path / "10.yaml").write_text("ab")
    (tmp_path / "20.yaml").write_text("c")
    (tmp_path / "30.yaml").mkdir()
    framed = b"\0\0\0\0\0\0\0\2ab" + b"\0\0\0\0\0\0\0\1c"
    assert providers_hash(tmp_path) == f"sha256:{hashlib.sha256(framed).hexdigest()}"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("1h30m", "soon", 'defaultCacheDuration: invalid duration "soon"'),
        ("name: provider", "name: a/b", "name: 'a/b' is not a program's name"),
        ('["*.example"]', "[]", "matchImages: at least one is required"),
        ('["*.example"]', "registry.example", "matchImages: must be a list of strings"),
        ('["*.example"]', '["%invalid%"]', "matchImages: '%invalid%' is not the name of an image"),
        ('["*.example"]', "['a.example:x']", "matchImages: 'a.example:x' is not the name"),
        ('["*.example"]', "['a .example']", "matchImages: 'a .example' is not the name"),
        ('["*.example"]', "['a.example/%zz']", "matchImages: 'a.example/%zz' is not the name"),
        ("kind: C", "provider: []\nkind: C", "provider: unknown field"),
        ("value: b}", "value: b, from: c}", r"env\[0\]\.from: unknown field"),
        ("config.k8s.io/v1\n", "config.k8s.io/v1beta1\n", "tokenAttributes: unknown field"),
        ("Keys: [a]", "Keys: ['@a']", "requiredServiceAccountAnnotationKeys: '@a' is not the key"),
        ("Keys: [b]", "Keys: [a..b/c]", "optionalServiceAccountAnnotationKeys: 'a..b/c' is not"),
        ("env:", "tokens: {}\n    env:", "tokens: unknown field"),
        ("env:", "1: {}\n    env:", "1: unknown field"),
        ("[{name: A, value: b}]", "[A]", r"env\[0\]: name and value are required"),
        ("[{name: A, value: b}]", "A=b", "env: must be a list"),
        ("name: provider", "name: [a]", r"name: \['a'\] is not a program's name"),
        ("1h30m", "1" * 200, "defaultCacheDuration: invalid duration"),
        (
            "kind: C",
            f"a: {'[' * 300}\nkind: C",
            "line 2, column 103: nested more than 100",
        ),
        ("k8s.io/v1\n    match", "k8s.io/v1beta1\n    match", "tokenAttributes: only with .*/v1"),
        ("Audience: reg", "Audience: ''", r"tokenAttributes\.serviceAccountTokenAudience: a name"),
        ("Audience: reg", "Audience: 1", r"tokenAttributes\.serviceAccountTokenAudience: a name"),
        ("cacheType: Token", "cacheType: Pod", "cacheType: one of ServiceAccount, Token"),
        ("      cacheType: Token\n", "", "cacheType: one of"),
        ("Account: true", "Account: maybe", "requireServiceAccount: true or false"),
        ("Account: true", "Account: false", "requiredServiceAccountAnnotationKeys: only where"),
        ("Keys: [b]", "Keys: b", "optionalServiceAccountAnnotationKeys: must be a list"),
        ("Keys: [b]", "Keys: [a]", "optionalServiceAccountAnnotationKeys: a is required as well"),
        ("Keys: [b]", "Keys: [b, b]", "optionalServiceAccountAnnotationKeys: b is listed twice"),
        ("Keys: [b]", "Keys: [1]", "optionalServiceAccountAnnotationKeys: 1 is not the key"),
        ("cacheType:", "kind: x\n      cacheType:", r"tokenAttributes\.kind: unknown field"),
        ("kind: C", "kind: X", "kind: CredentialProviderConfig is expected"),
        ("    apiVersion: credentialprovider", "    apiVersion: x", "apiVersion: .*v1 is expected"),
    ],
)
def test_a_wrong_configuration_names_file_and_field(
    tmp_path: Path, old: str, new: str, wanted: str
) -> None:
    file = tmp_path / "providers.yaml"
    assert old in CONFIG
    file.write_text(CONFIG.replace(old, new))
    with pytest.raises(ValueError, match=f"{file}: .*{wanted}"):
        load_providers(file)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"credential provider p: no program {tmp_path}/p"):
        make_plugins([Provider("p", ("*",), 0.0, API)], tmp_path)
