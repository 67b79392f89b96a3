"""/statusz and /flagz: the form that the request's Accept header names."""

from __future__ import annotations

import json

import pytest
import yaml

from kubelet_trio.server import HttpError
from kubelet_trio.server.debug.zpages import flagz, negotiate, statusz

TEXT = ("text/plain", "")
BETA = "v=v1beta1;g=config.k8s.io;as=Statusz"
ALPHA = "v=v1alpha1;g=config.k8s.io;as=Statusz"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, TEXT),
        ("", TEXT),
        (" ", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("text/*", TEXT),
        ("text/plain; charset=utf-8", TEXT),
        ("application/json, */*", TEXT),  # kubectl get --raw
        (f"application/json;{BETA}", ("application/json", "v1beta1")),
        (f"application/json; {BETA.replace(';', ' ; ')}", ("application/json", "v1beta1")),
        (
            'application/json;v="v1beta1";g=config.k8s.io;as=Statusz',
            ("application/json", "v1beta1"),
        ),
        (f"application/json;{ALPHA}", ("application/json", "v1alpha1")),
        (f"application/yaml;{BETA}", ("application/yaml", "v1beta1")),
        (f"application/*;{BETA}", ("application/json", "v1beta1")),
        (f"*/*;{BETA}", ("application/json", "v1beta1")),
        (f"application/json;{ALPHA}, application/yaml;{BETA}", ("application/json", "v1alpha1")),
        (
            f"application/json;{ALPHA};q=0.5, application/yaml;{BETA}",
            ("application/yaml", "v1beta1"),
        ),
        (f"text/plain;q=0.9, application/json;{BETA};q=0.4", TEXT),
        ("application/json;v=foo;g=config.k8s.io;as=Statusz,*/*", TEXT),
        (f"application/json;stream=watch;{BETA},*/*", TEXT),
    ],
)
def test_the_first_form_that_is_asked_for_and_known_is_given(
    accept: str | None, form: tuple[str, str]
) -> None:
    assert negotiate(accept, "Statusz") == form


@pytest.mark.parametrize(
    "accept",
    [
        "application/xml",
        "application/json",
        "application/json;v=v1beta1;g=config.k8s.io",
        "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
        "application/json;v=v1;g=config.k8s.io;as=Statusz",
        "application/vnd.kubernetes.protobuf;" + BETA,
        f"text/plain;{BETA}",
        "nonsense",
    ],
)
def test_another_form_is_not_acceptable(accept: str) -> None:
    with pytest.raises(HttpError) as refused:
        negotiate(accept, "Statusz")
    response = refused.value.response()
    assert response.status == 406
    status = json.loads(response.body)
    assert status["kind"] == "Status"
    assert status["reason"] == "NotAcceptable"
    accepted = "application/json, application/yaml, text/plain"
    assert status["message"] == f"only the following media types are accepted: {accepted}"


def test_the_state_as_an_object() -> None:
    answer = statusz(
        f"application/json;{BETA}", 1_700_000_000.5, 1_700_003_665, "v1.36.2", ["/pods"]
    )
    assert answer.content_type == "application/json;g=config.k8s.io;v=v1beta1;as=Statusz"
    assert not any(name == "Warning" for name, _ in answer.headers)
    body = json.loads(answer.body)
    assert body.pop("binaryVersion")
    assert body == {
        "kind": "Statusz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kubelet"},
        "startTime": "2023-11-14T22:13:20Z",
        "uptimeSeconds": 3664,
        "goVersion": "",
        "emulationVersion": "1.36",
        "paths": ["/pods"],
    }


def test_the_state_as_text() -> None:
    answer = statusz(None, 1_700_000_000, 1_700_003_665, "v1.36.2", ["/healthz", "/pods"])
    lines = answer.body.decode().splitlines()
    assert answer.content_type == "text/plain; charset=utf-8"
    assert lines[1] == "kubelet statusz"
    assert lines[2].startswith("Warning: This endpoint is not meant to be machine parseable")
    assert "Up: 1 hr 01 min 05 sec" in lines
    assert lines[-1] == "Paths: /healthz /pods"


def test_an_old_version_is_given_with_a_warning() -> None:
    accept = "application/json;v=v1alpha1;g=config.k8s.io;as=Flagz"
    answer = flagz(accept, {"v": "2"})
    assert json.loads(answer.body)["apiVersion"] == "config.k8s.io/v1alpha1"
    text = "This version of the flagz endpoint is deprecated. Please use a newer version."
    assert ("Warning", f'299 - "{text}"') in answer.headers


def test_the_flags_as_an_object_in_yaml() -> None:
    accept = "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz"
    answer = flagz(accept, {"v": "2", "root-dir": "/var/lib/kubelet"})
    assert answer.content_type == "application/yaml;g=config.k8s.io;v=v1beta1;as=Flagz"
    assert yaml.safe_load(answer.body) == {
        "kind": "Flagz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kubelet"},
        "flags": {"v": "2", "root-dir": "/var/lib/kubelet"},
    }


def test_the_flags_as_text_are_sorted() -> None:
    text = flagz("*/*", {"v": "2", "root-dir": "/var/lib/kubelet"}).body.decode()
    assert text.startswith("\nkubelet flagz\nWarning: ")
    assert text.endswith("\nroot-dir=/var/lib/kubelet\nv=2\n")
