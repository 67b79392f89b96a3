"""Who may use an image that is on the node already: the records and the rules, pure.

An image that was pulled with a pod's own secret is for pods that have such a secret too, one pulled
with what a program gave for a service account is for that account's pods; one pulled without a
login, or with the node's own, is for all of them. What was pulled with what is recorded by image,
in the Go kubelet's form, so that either agent goes on with the other's records. Source: KEP-2535,
pkg/kubelet/images/pullmanager (1.36).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from kubelet_trio.credentials.matching import AccountSource, Login, SecretSource, repository
from kubelet_trio.model import sha256

GROUP = "kubelet.config.k8s.io/"
VERSION = GROUP + "v1beta1"  # what 1.35 and later write
VERSIONS = (VERSION, GROUP + "v1alpha1")
INTENT, RECORD = "ImagePullIntent", "ImagePulledRecord"

_MOST_SECRETS = 100  # of one image, beyond which what merely matched is not noted down


class PullSecret(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A pull secret as it was when it was used; the hash is of the login that it held."""

    uid: str
    namespace: str
    name: str
    credential_hash: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.namespace, self.name, self.uid


class PullServiceAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account whose token a credential provider was given."""

    uid: str
    namespace: str
    name: str

    @property
    def place(self) -> tuple[str, str, str]:
        return self.namespace, self.name, self.uid


class PullCredentials(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Who has shown that they may pull an image."""

    kubernetes_secrets: tuple[PullSecret, ...] = ()
    kubernetes_service_accounts: tuple[PullServiceAccount, ...] = ()
    node_pods_accessible: bool = False


class PulledRecord(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """An image that an agent pulled: by repository, who may."""

    kind: str
    api_version: str
    last_updated_time: str  # RFC 3339, whole seconds
    image_ref: str  # as the runtime calls it
    credential_mapping: dict[str, PullCredentials] = {}


class PullIntent(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A pull that was begun."""

    kind: str
    api_version: str
    image: str


def file_name(text: str) -> str:
    """Return what the file of a record (by its `imageRef`) or an intent (by image) is called."""
    return f"sha256-{sha256(text.encode()).hexdigest()}"


def credential_hash(login: Login) -> str:
    """Return the hash of a login: of what Go's encoder writes of it, so that both agree."""
    fields = {"username": login.username, "password": login.password, "email": login.email}
    text = json.dumps(
        {name: value for name, value in fields.items() if value},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return sha256(text.encode()).hexdigest()


def secrets_of(logins: Iterable[Login]) -> list[PullSecret]:
    """Return those of the logins that are from secrets."""
    return [_secret(login, s) for login in logins if isinstance(s := login.source, SecretSource)]


def accounts_of(logins: Iterable[Login]) -> list[PullServiceAccount]:
    """Return the service accounts that some of the logins are for."""
    return [_account(s) for login in logins if isinstance(s := login.source, AccountSource)]


def credentials_of(login: Login | None) -> PullCredentials:
    """Return who may use an image that was pulled with that login; None: with none."""
    if login is None or login.source is None:
        return PullCredentials(node_pods_accessible=True)
    if isinstance(login.source, AccountSource):
        return PullCredentials(kubernetes_service_accounts=(_account(login.source),))
    return PullCredentials((_secret(login, login.source),))


def _secret(login: Login, source: SecretSource) -> PullSecret:
    return PullSecret(source.uid, source.namespace, source.name, credential_hash(login))


def _account(source: AccountSource) -> PullServiceAccount:
    return PullServiceAccount(source.uid, source.namespace, source.name)


def merged(
    record: PulledRecord | None,
    image_ref: str,
    image: str,
    credentials: PullCredentials | None,
    now: float,
) -> PulledRecord:
    """Return the record with those credentials added; the same one if they change nothing.

    None of `credentials` is for a pull of which nobody knows how it was done.
    """
    name = repository(image)
    if record is None:
        mapping = {} if credentials is None else {name: credentials}
        return _record(image_ref, mapping, now)
    if credentials is None or credentials == PullCredentials():
        return record
    before = record.credential_mapping.get(name, PullCredentials())
    after = _merged_credentials(before, credentials)
    if after == before:
        return record
    return _record(image_ref, {**record.credential_mapping, name: after}, now)


def _merged_credentials(before: PullCredentials, more: PullCredentials) -> PullCredentials:
    if before.node_pods_accessible:
        return before
    if more.node_pods_accessible:
        return PullCredentials(node_pods_accessible=True)
    secrets = {s.place: s for s in (*before.kubernetes_secrets, *more.kubernetes_secrets)}
    both = (*before.kubernetes_service_accounts, *more.kubernetes_service_accounts)
    accounts = {account.place: account for account in both}
    return PullCredentials(
        tuple(secrets[place] for place in sorted(secrets)),
        tuple(accounts[place] for place in sorted(accounts)),
    )


def _record(image_ref: str, mapping: dict[str, PullCredentials], now: float) -> PulledRecord:
    moment = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return PulledRecord(RECORD, VERSION, text, image_ref, mapping)


def updated_at(record: PulledRecord) -> float:
    """Return the Unix time of a record's last change. Raises ValueError."""
    return datetime.datetime.fromisoformat(record.last_updated_time).timestamp()


# The policies


@dataclass(frozen=True, slots=True)
class PullVerification:
    """`imagePullCredentialsVerificationPolicy`, and the images that one of them spares."""

    policy: str = "NeverVerifyPreloadedImages"
    allowlist: tuple[str, ...] = ()  # repositories, or what they begin with and `*`

    @property
    def is_off(self) -> bool:
        return self.policy == "NeverVerify"

    def is_for(self, image: str, *, pulled_here: bool) -> bool:
        """Return whether pods must show that they may use that image."""
        if self.policy == "NeverVerifyPreloadedImages":
            return pulled_here
        if self.policy == "NeverVerifyAllowlistedImages":
            return not self._spares(repository(image))
        return self.policy == "AlwaysVerify"

    def _spares(self, name: str) -> bool:
        return any(
            name.startswith(p.removesuffix("*")) if p.endswith("/*") else name == p
            for p in self.allowlist
        )


class Access(Enum):
    """What is known of a pod's right to an image before its secrets are looked at."""

    GIVEN = "given"
    OPEN = "open"  # the pod's secrets and service account decide
    UNKNOWN = "unknown"  # the registry decides


def access(
    policy: PullVerification, image: str, record: PulledRecord | None, *, pulled_here: bool
) -> Access:
    """Return what the records say; `pulled_here`: an agent pulled it, or began to."""
    if not policy.is_for(image, pulled_here=pulled_here):
        return Access.GIVEN
    known = record.credential_mapping.get(repository(image)) if record is not None else None
    if known is None:
        return Access.UNKNOWN
    if known.node_pods_accessible:
        return Access.GIVEN
    is_open = known.kubernetes_secrets or known.kubernetes_service_accounts
    return Access.OPEN if is_open else Access.UNKNOWN


def match(
    known: PullCredentials,
    own: Sequence[PullSecret],
    accounts: Collection[PullServiceAccount] = (),
) -> tuple[bool, PullCredentials | None]:
    """Return whether a secret or the account of the pod is known, and what of it to note down.

    A login that was used before counts wherever it comes from, and a secret that was used
    before counts with whatever login it holds now (that is how logins are rotated).
    """
    is_full = len(known.kubernetes_secrets) >= _MOST_SECRETS
    for secret in own:
        for other in known.kubernetes_secrets:
            is_same_login = bool(other.credential_hash) and (
                secret.credential_hash == other.credential_hash
            )
            is_same_place = secret.place == other.place
            if not is_same_login and (not is_same_place or is_full):
                continue
            is_news = not (is_same_login and is_same_place) and not is_full
            return True, PullCredentials((secret,)) if is_news else None
    return any(account in known.kubernetes_service_accounts for account in accounts), None


_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")


def allowlist_problem(pattern: str) -> str:
    """Return what is wrong with an entry of the allowlist; "" if nothing is."""
    if pattern != pattern.strip():
        return f"leading/trailing spaces are not allowed: {pattern}"
    is_prefix = pattern.endswith("/*")
    name = pattern.removesuffix("*") if is_prefix else pattern
    if not name:
        return f"the supplied pattern is too short: {pattern}"
    if "*" in name:
        return (
            f"not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
        )
    if is_prefix:
        return "" if name != "/" else "at least registry hostname is required"
    if any(not _NAME.fullmatch(part) for part in repository(name).split("/")[1:]):
        return f"failed to parse as an image name: {pattern}"
    if name != repository(name):
        return f"neither tag nor digest is accepted, and the registry is needed: {pattern}"
    return ""
