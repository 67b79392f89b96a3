"""Who may use an image that is there: the decisions, and the records' form."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from kubelet_trio.credentials.matching import AccountSource, Login, SecretSource
from kubelet_trio.credentials.pulled import (
    Access,
    PullCredentials,
    PulledRecord,
    PullSecret,
    PullServiceAccount,
    PullVerification,
    access,
    accounts_of,
    allowlist_problem,
    credential_hash,
    credentials_of,
    match,
    merged,
    secrets_of,
    updated_at,
)

IMAGE = "reg.example/team/app:1"
NAME = "reg.example/team/app"
ALL = PullCredentials(node_pods_accessible=True)


def secret(name: str = "one", login: str = "h1", uid: str = "u1") -> PullSecret:
    return PullSecret(uid, "default", name, login)


def of(*secrets: PullSecret) -> PullCredentials:
    return PullCredentials(tuple(secrets))


def record(**mapping: PullCredentials) -> PulledRecord:
    known = {NAME if key == "app" else key: value for key, value in mapping.items()}
    return msgspec.structs.replace(
        merged(None, "sha256:1", IMAGE, None, 0), credential_mapping=known
    )


@pytest.mark.parametrize(
    ("policy", "image", "known", "pulled_here", "expected"),
    [
        ("NeverVerify", IMAGE, record(app=of(secret())), True, Access.GRANTED),
        ("NeverVerifyPreloadedImages", IMAGE, None, False, Access.GRANTED),
        ("NeverVerifyPreloadedImages", IMAGE, None, True, Access.UNKNOWN),
        ("NeverVerifyPreloadedImages", IMAGE, record(), True, Access.UNKNOWN),
        ("NeverVerifyPreloadedImages", IMAGE, record(app=ALL), True, Access.GRANTED),
        (
            "NeverVerifyPreloadedImages",
            IMAGE,
            record(app=of(secret())),
            True,
            Access.BY_CREDENTIALS,
        ),
        ("NeverVerifyPreloadedImages", "other/app:1", record(app=ALL), True, Access.UNKNOWN),
        ("AlwaysVerify", IMAGE, None, False, Access.UNKNOWN),
        ("AlwaysVerify", IMAGE, record(app=ALL), True, Access.GRANTED),
        ("NeverVerifyAllowlistedImages", IMAGE, None, False, Access.UNKNOWN),
        ("NeverVerifyAllowlistedImages", "spared.example/x/y:2", None, True, Access.GRANTED),
        ("NeverVerifyAllowlistedImages", "busybox", None, True, Access.UNKNOWN),
        ("NeverVerifyAllowlistedImages", "team/app", None, True, Access.UNKNOWN),
        ("NeverVerifyAllowlistedImages", "alpine", None, True, Access.GRANTED),
        ("NeverVerifyAllowlistedImages", "alpine:3", None, True, Access.GRANTED),
        ("NeverVerifyAllowlistedImages", "alpine@sha256:" + "0" * 64, None, True, Access.GRANTED),
        ("NeverVerifyAllowlistedImages", "docker.io/library/alpine", None, True, Access.UNKNOWN),
        ("NeverVerifyAllowlistedImages", "docker.io/library/busybox2", None, True, Access.UNKNOWN),
    ],
)
def test_what_the_records_say(
    policy: str, image: str, known: PulledRecord | None, pulled_here: bool, expected: Access
) -> None:
    # As pods write the name: what it is short for depends on the runtime.
    spared = ("docker.io/library/busybox", "docker.io/team/*", "alpine", "spared.example/*")
    verification = PullVerification(policy, spared)
    assert access(verification, image, known, pulled_here=pulled_here) is expected


MANY = tuple(secret(f"s{n}", f"h{n}", f"u{n}") for n in range(100))


@pytest.mark.parametrize(
    ("known", "own", "expected"),
    [
        (of(secret()), [], (False, None)),
        (of(secret()), [secret()], (True, None)),
        (of(secret()), [secret("two", "other", "u2")], (False, None)),
        (of(secret()), [secret("two", "h1", "u2")], (True, of(secret("two", "h1", "u2")))),
        (of(secret()), [secret(login="rotated")], (True, of(secret(login="rotated")))),
        (of(secret(login="")), [secret("two", "", "u2")], (False, None)),
        (of(*MANY), [secret("new", "h1", "new")], (True, None)),
        (of(*MANY), [secret("s1", "rotated", "u1")], (False, None)),
    ],
)
def test_which_secrets_count(
    known: PullCredentials,
    own: list[PullSecret],
    expected: tuple[bool, PullCredentials | None],
) -> None:
    assert match(known, own) == expected


ACCOUNT = PullServiceAccount("u", "default", "builder")
OTHER = PullServiceAccount("u2", "default", "builder")  # deleted and made anew
FOR_ACCOUNT = PullCredentials(kubernetes_service_accounts=(ACCOUNT,))


@pytest.mark.parametrize(
    ("known", "accounts", "is_known"),
    [
        (FOR_ACCOUNT, [ACCOUNT], True),
        (FOR_ACCOUNT, [OTHER, ACCOUNT], True),
        (FOR_ACCOUNT, [OTHER], False),
        (FOR_ACCOUNT, [], False),
        (of(secret()), [ACCOUNT], False),
    ],
)
def test_which_service_accounts_count(
    known: PullCredentials, accounts: list[PullServiceAccount], is_known: bool
) -> None:
    assert match(known, [], accounts) == (is_known, None)


def test_an_image_of_a_service_account_is_open_to_it_alone() -> None:
    known = record(app=FOR_ACCOUNT)
    assert access(PullVerification(), IMAGE, known, pulled_here=True) is Access.BY_CREDENTIALS
    login = Login("token", "p", source=AccountSource("u", "default", "builder"))
    assert credentials_of(login) == FOR_ACCOUNT
    assert (accounts_of([login]), secrets_of([login])) == ([ACCOUNT], [])
    assert accounts_of([Login("node", "p")]) == []


@pytest.mark.parametrize(
    ("before", "more", "after"),
    [
        (of(secret()), of(secret("two", "h2", "u2")), of(secret(), secret("two", "h2", "u2"))),
        (of(secret()), of(secret(login="new")), of(secret(login="new"))),
        (of(secret()), ALL, ALL),
        (ALL, of(secret()), ALL),
        (of(secret()), PullCredentials(), of(secret())),
        (
            PullCredentials((secret(),), (ACCOUNT,)),
            of(secret("a", "h", "u")),
            PullCredentials((secret("a", "h", "u"), secret()), (ACCOUNT,)),
        ),
        (
            of(secret()),
            PullCredentials((), (OTHER, ACCOUNT)),
            PullCredentials((secret(),), (ACCOUNT, OTHER)),
        ),
    ],
)
def test_records_grow(
    before: PullCredentials, more: PullCredentials, after: PullCredentials
) -> None:
    old = record(app=before)
    new = merged(old, "sha256:1", IMAGE, more, 1_700_000_000.9)
    assert new.credential_mapping == {NAME: after}
    assert (new is old) == (before == after)
    assert new is old or updated_at(new) == 1_700_000_000


def test_an_unseen_pull_is_a_record_of_nobody() -> None:
    assert merged(None, "sha256:1", IMAGE, None, 0).credential_mapping == {}
    known = record(app=ALL)
    assert merged(known, "sha256:1", IMAGE, None, 5) is known


def test_logins_of_the_node_and_none_are_for_all() -> None:
    assert credentials_of(None) == credentials_of(Login("node", "p")) == ALL
    login = Login("a", "p", source=SecretSource("u1", "default", "one"))
    assert credentials_of(login) == of(secret(login=credential_hash(login)))


@pytest.mark.parametrize(
    ("login", "encoded"),
    [
        (Login("user", "pass"), '{"username":"user","password":"pass"}'),
        (Login("u", "", "u@e.example"), '{"username":"u","email":"u@e.example"}'),
        (
            Login("<a&b>", 'q"\\ü\n'),
            '{"username":"\\u003ca\\u0026b\\u003e","password":"q\\"\\\\ü\\n"}',
        ),
        (Login("u", "\u2028\x01"), '{"username":"u","password":"\\u2028\\u0001"}'),
    ],
)
def test_hashes_are_of_what_go_encodes(login: Login, encoded: str) -> None:
    assert credential_hash(login) == hashlib.sha256(encoded.encode()).hexdigest()


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("reg.example/team/app", ""),
        ("reg.example:5000/*", ""),
        ("docker.io/library/busybox", ""),
        (" reg.example/a", "leading/trailing spaces"),
        ("reg.example/a*", "not a valid wildcard"),
        ("reg.example/*/a", "not a valid wildcard"),
        ("/*", "at least registry hostname"),
        ("", "too short"),
        ("reg.example/App", "failed to parse"),
        ("reg.example/app:1", "neither tag nor digest is accepted in an image reference"),
        ("reg.example:5000", "neither tag nor digest"),
        ("reg.example/app@sha256:" + "0" * 64, "neither tag nor digest"),
        ("reg.example/", "failed to parse"),
        ("busybox", ""),
        ("team/busybox", ""),
    ],
)
def test_allowlists(pattern: str, problem: str) -> None:
    found = allowlist_problem(pattern)
    assert problem in found
    assert bool(found) == bool(problem)
