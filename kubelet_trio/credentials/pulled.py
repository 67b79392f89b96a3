"""Which pods may use an image that is on the node: the pull records and the rules. Pure.

- An image pulled with a pod's secret is for pods that have that secret, or the same login.
- An image pulled with a credential provider's login for a service account is for its pods.
- An image pulled without a login, or with the node's own, is for all pods.

Names of images are compared as pods write them: which registry a short one such as `busybox` means
depends on the runtime.

The records have the Go kubelet's format, so that either agent can continue with the other's.
Source: KEP-2535, pkg/kubelet/images/pullmanager (1.36).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from kubelet_trio.credentials.matching import (
    AccountSource,
    Login,
    SecretSource,
    repository,
    untagged,
)
from kubelet_trio.model import sha256

GROUP = "kubelet.config.k8s.io/"
VERSION = GROUP + "v1beta1"  # written by Kubernetes 1.35 and later
VERSIONS = (VERSION, GROUP + "v1alpha1")
INTENT, RECORD = "ImagePullIntent", "ImagePulledRecord"

# writeRecordWhileMatchingLimit in pullmanager/image_pull_manager.go: where namespaces come and
# go, a record would grow with each of them.
_MAX_SECRETS = 100  # in one image's record; beyond it a matching secret is not added


class PullSecret(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A pull secret at the time of a pull; `credential_hash` is of the login in it."""

    uid: str
    namespace: str
    name: str
    credential_hash: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.namespace, self.name, self.uid


class PullServiceAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service account whose token a credential provider got."""

    uid: str
    namespace: str
    name: str

    @property
    def place(self) -> tuple[str, str, str]:
        return self.namespace, self.name, self.uid


class PullCredentials(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The secrets and accounts that have proved access to an image."""

    kubernetes_secrets: tuple[PullSecret, ...] = ()
    kubernetes_service_accounts: tuple[PullServiceAccount, ...] = ()
    node_pods_accessible: bool = False


class PulledRecord(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """An image that a kubelet pulled, and by its name without tag and digest who may use it."""

    kind: str
    api_version: str
    last_updated_time: str  # RFC 3339, whole seconds
    image_ref: str  # as the runtime names it
    credential_mapping: dict[str, PullCredentials] = {}


class PullIntent(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A pull that has begun."""

    kind: str
    api_version: str
    image: str


def file_name(text: str) -> str:
    """Return the file name of a record (from its `imageRef`) or an intent (from the image)."""
    return f"sha256-{sha256(text.encode()).hexdigest()}"


def credential_hash(login: Login) -> str:
    """Return the hash of a login, equal to the Go kubelet's: of encoding/json's output."""
    fields = {"username": login.username, "password": login.password, "email": login.email}
    text = json.dumps(
        {name: value for name, value in fields.items() if value},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    for char in "<>&\u2028\u2029":  # encoding/json escapes them for HTML
        text = text.replace(char, f"\\u{ord(char):04x}")
    return sha256(text.encode()).hexdigest()


def secrets_of(logins: Iterable[Login]) -> list[PullSecret]:
    """Return the pull secrets that the logins are from."""
    return [_secret(login, s) for login in logins if isinstance(s := login.source, SecretSource)]


def accounts_of(logins: Iterable[Login]) -> list[PullServiceAccount]:
    """Return the service accounts that the logins are for."""
    return [_account(s) for login in logins if isinstance(s := login.source, AccountSource)]


def credentials_of(login: Login | None) -> PullCredentials:
    """Return who may use an image pulled with a login; None: pulled anonymously."""
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
    """Return the record with credentials added; the same object if nothing changes.

    `credentials` is None for a pull with unknown credentials.
    """
    name = untagged(image)
    if record is None:
        mapping = {} if credentials is None else {name: credentials}
        return _record(image_ref, mapping, now)
    # An existing record is never weakened by a pull with unknown credentials.
    if credentials is None or credentials == PullCredentials():
        return record
    before = record.credential_mapping.get(name, PullCredentials())
    after = _merged_credentials(before, credentials)
    if after == before:
        return record
    return _record(image_ref, {**record.credential_mapping, name: after}, now)


def _merged_credentials(before: PullCredentials, more: PullCredentials) -> PullCredentials:
    # Accessible to all pods: secrets and accounts add nothing.
    if before.node_pods_accessible:
        return before
    if more.node_pods_accessible:
        return PullCredentials(node_pods_accessible=True)
    secrets = {s.place: s for s in (*before.kubernetes_secrets, *more.kubernetes_secrets)}
    both = (*before.kubernetes_service_accounts, *more.kubernetes_service_accounts)
    accounts = {account.place: account for account in both}
    return PullCredentials(
        # Sorted as the Go kubelet sorts them.
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
    """`imagePullCredentialsVerificationPolicy`, and the allowlist of one of its values."""

    policy: str = "NeverVerifyPreloadedImages"
    allowlist: tuple[str, ...] = ()  # names without tag and digest, or prefixes with `/*`

    @property
    def is_off(self) -> bool:
        return self.policy == "NeverVerify"

    def is_for(self, image: str, *, pulled_here: bool) -> bool:
        """Return whether pods must prove access to an image."""
        if self.policy == "NeverVerifyPreloadedImages":
            return pulled_here
        if self.policy == "NeverVerifyAllowlistedImages":
            return not self._is_allowlisted(untagged(image))
        return self.policy == "AlwaysVerify"

    def _is_allowlisted(self, name: str) -> bool:
        return any(
            name.startswith(p.removesuffix("*")) if p.endswith("/*") else name == p
            for p in self.allowlist
        )


class Access(Enum):
    """A pod's access to an image, as far as the records decide it."""

    GRANTED = "granted"
    BY_CREDENTIALS = "by credentials"  # the pod's secrets and service account decide
    UNKNOWN = "unknown"  # the registry decides


def access(
    policy: PullVerification, image: str, record: PulledRecord | None, *, pulled_here: bool
) -> Access:
    """Return what the records decide; `pulled_here`: a kubelet pulled the image, or began to."""
    if not policy.is_for(image, pulled_here=pulled_here):
        return Access.GRANTED
    known = record.credential_mapping.get(untagged(image)) if record is not None else None
    if known is None:
        return Access.UNKNOWN
    if known.node_pods_accessible:
        return Access.GRANTED
    has_any = known.kubernetes_secrets or known.kubernetes_service_accounts
    return Access.BY_CREDENTIALS if has_any else Access.UNKNOWN


def match(
    known: PullCredentials,
    own: Sequence[PullSecret],
    accounts: Collection[PullServiceAccount] = (),
) -> tuple[bool, PullCredentials | None]:
    """Return whether the record has a secret or the account of the pod, and what to add to it.

    A known login counts whichever secret it is in. A known secret counts whatever login it holds
    now, because logins are rotated.
    """
    is_full = len(known.kubernetes_secrets) >= _MAX_SECRETS
    for secret in own:
        for other in known.kubernetes_secrets:
            # The Go kubelet writes an empty hash if it could not compute one.
            is_same_login = bool(other.credential_hash) and (
                secret.credential_hash == other.credential_hash
            )
            is_same_place = secret.place == other.place
            # As MustAttemptImagePull: a full record matches by the login only.
            if not is_same_login and (not is_same_place or is_full):
                continue
            is_new = not (is_same_login and is_same_place) and not is_full
            return True, PullCredentials((secret,)) if is_new else None
    return any(account in known.kubernetes_service_accounts for account in accounts), None


_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")


def allowlist_problem(pattern: str) -> str:
    """Return the problem of an entry of the allowlist; "" if there is none."""
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
    if name != untagged(name):
        return f"neither tag nor digest is accepted in an image reference: {pattern}"
    return ""
