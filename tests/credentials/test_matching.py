from __future__ import annotations

import pytest

from kubelet_trio.credentials import Login, lookup, matches, repository

A, B, C = Login("a", "1"), Login("b", "2"), Login("c", "3")


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("busybox", "docker.io/library/busybox"),
        ("busybox:1.36", "docker.io/library/busybox"),
        ("user/app@sha256:" + "0" * 64, "docker.io/user/app"),
        ("docker.io/busybox", "docker.io/library/busybox"),
        ("index.docker.io/user/app:1", "docker.io/user/app"),
        ("reg.example/app:1", "reg.example/app"),
        ("reg.example:5000/team/app:1@sha256:" + "0" * 64, "reg.example:5000/team/app"),
        ("localhost/app", "localhost/app"),
        ("localhost:5000/app", "localhost:5000/app"),
        ("[::1]:5000/app:2", "[::1]:5000/app"),
    ],
)
def test_repository(image: str, wanted: str) -> None:
    assert repository(image) == wanted


@pytest.mark.parametrize(
    ("pattern", "image", "wanted"),
    [
        ("reg.example", "reg.example/app", True),
        ("https://reg.example", "reg.example/app", True),
        ("reg.example", "reg.example:5000/app", False),
        ("reg.example:5000", "reg.example:5000/app", True),
        ("reg.example:5001", "reg.example:5000/app", False),
        ("*.example", "reg.example/app", True),
        ("*.example", "a.reg.example/app", False),
        ("*.*.example", "a.reg.example/app", True),
        ("app*.example", "app7.example/x", True),
        ("*", "reg.example/app", False),
        ("reg.example/team", "reg.example/team/app", True),
        ("reg.example/team", "reg.example/other/app", False),
        ("reg.example/*", "reg.example/team", False),  # globs are for hosts alone
        ("reg.example:port", "reg.example/app", False),
    ],
)
def test_matches(pattern: str, image: str, wanted: bool) -> None:
    assert matches(pattern, image) is wanted


def test_the_most_of_the_path_comes_first_and_every_match_is_tried() -> None:
    logins = {"reg.example": A, "reg.example/team/app": B, "reg.example/team": C, "other": A}
    assert lookup([[logins]], "reg.example/team/app") == [B, C, A]


def test_keyrings_are_asked_in_turn_and_the_same_login_is_tried_once() -> None:
    keyrings = [[{"reg.example": A}], [{"reg.example": B}], [{"*.example": A}]]
    assert lookup(keyrings, "reg.example/x") == [A, B]


def test_secrets_of_a_pod_are_one_keyring() -> None:
    own = [{"reg.example": A}, {"reg.example/team": B}, {"reg.example/team": C}]
    node = [{"reg.example/team/app": Login("node", "4")}]
    assert lookup([own, node], "reg.example/team/app") == [B, C, A, Login("node", "4")]
    # Docker Hub's old name counts only if none of them has the new one.
    hub = [{"https://index.docker.io/v1/": A}, {"docker.io": B}]
    assert lookup([hub], repository("busybox")) == [B]


@pytest.mark.parametrize(
    "location", ["https://index.docker.io/v1/", "index.docker.io", "docker.io"]
)
def test_docker_hub_goes_by_its_old_names_as_well(location: str) -> None:
    assert lookup([[{location: A}]], repository("busybox")) == [A]
    assert lookup([[{location: A}]], repository("reg.example/busybox")) == []
