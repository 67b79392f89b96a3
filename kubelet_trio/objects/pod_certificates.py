"""Certificates for pods: a key and a PodCertificateRequest for each podCertificate source.

Each source has a task of its own while its pod exists:

    requested ──► issued ──► renewed from beginRefreshAt on, again and again
        │           │
        └───────────┴──► denied or failed: for good, as upstream

Keys and certificates are in memory only, so an agent that starts requests all of them anew, as the
Go kubelet does. A request that is refused by the API server, or is gone before it is answered, is
repeated with a new key. Upstream: pkg/kubelet/podcertificate.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
import trio
from lightkube.models.certificates_v1beta1 import (
    PodCertificateRequest,
    PodCertificateRequestSpec,
)
from lightkube.models.core_v1 import Node, Pod, PodCertificateProjection, ServiceAccount
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference

from kubelet_trio.kube import (
    API_ERRORS,
    CertificateError,
    KubeApi,
    ProvenKey,
    Reflector,
    ServerFeatures,
    proven_key,
)
from kubelet_trio.model import (
    Backoff,
    EventSink,
    PodUid,
    WallClock,
    about_pod,
    get_logger,
    pod_key,
    pod_object_ref,
    pod_uid,
    spec,
)
from kubelet_trio.objects.errors import ObjectError
from kubelet_trio.objects.issued import CredentialBundle
from kubelet_trio.objects.pem import certificates_pem, pem_blocks
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor, Restart

log = get_logger()

_REQUESTS = "certificate-requests"
_FIRST_ANSWER = 10.0  # seconds that a pod waits for its certificate
_JITTER = 300.0  # the longest delay of a renewal, so that not all pods renew at once
_OVERDUE = 600.0  # seconds from beginRefreshAt until a renewal counts as overdue
_ABANDONED = 600.0  # seconds until a request that no list shows counts as deleted
_RETRY_BASE, _RETRY_CAP = 1.0, 300.0  # seconds after a failed request
_CHECK_PERIOD = 60.0  # seconds between two looks at the wall clock, which may be set
_MAKERS = 2  # processes that make keys at a time: RSA keys take a second of the processor


class SourceKey(NamedTuple):
    """One podCertificate source: its place in a projected volume of a pod."""

    uid: PodUid
    volume: str
    place: int  # of the source in the volume


@dataclass(frozen=True, slots=True)
class AwaitedBundle:
    """There is no certificate yet; `problem` says why, "" while the signer is waited for."""

    problem: str = ""


@dataclass(frozen=True, slots=True)
class RefusedBundle:
    """There will be no certificate."""

    type: str  # the request's condition: Denied or Failed
    reason: str
    message: str
    request: str  # the request's namespace and name

    @property
    def verb(self) -> str:
        return "denied" if self.type == "Denied" else "failed"


@dataclass(frozen=True, slots=True)
class IssuedBundle:
    """A certificate; times are Unix seconds."""

    bundle: CredentialBundle
    refresh_at: float
    not_after: float


@dataclass(slots=True, eq=False)
class _Record:
    """The state of one source."""

    pod: Pod
    source: PodCertificateProjection
    state: AwaitedBundle | RefusedBundle | IssuedBundle
    patient_until: float  # trio time until which a caller waits for the first answer
    answered: trio.Event = field(default_factory=trio.Event)


class ClusterPodCertificates:
    """A `PodCertificates` on an API server."""

    def __init__(
        self,
        api: KubeApi,
        tree: DynamicSupervisor,
        node_name: str,
        node: Callable[[], Node | None],
        clock: WallClock,
        events: EventSink,
        changed: Callable[[PodUid], None] = lambda _uid: None,
        *,
        features: ServerFeatures | None = None,
        make_key: Callable[[str], Awaitable[ProvenKey]] = proven_key,
    ) -> None:
        """Take the seams; nothing is read yet.

        Args:
            api: the API server.
            tree: supervises the watch of requests, and a task for each source.
            node_name: the node's name.
            node: returns the node's object, None if it is not known.
            clock: wall time.
            events: for certificates that are refused or come too late.
            changed: called for a pod when one of its certificates is issued, renewed or refused.
            features: of the server.
            make_key: makes a key of a type; raises `CertificateError`.
        """
        self._api = api
        self._tree = tree
        self._node_name = node_name
        self._node = node
        self._clock = clock
        self._events = events
        self._changed = changed
        self._features = features
        self._make_key = make_key
        self._makers = trio.CapacityLimiter(_MAKERS)
        self._records: dict[SourceKey, _Record] = {}
        self._requests: Mapping[tuple[str, str], PodCertificateRequest] = {}
        self._delivered = trio.Event()  # set and replaced at each delivery of requests

    async def credentials(self, pod: Pod, volume: str, index: int) -> CredentialBundle:
        """Return the certificate of a source; the first call requests it. Raises `ObjectError`."""
        record = self._record(pod, volume, index)
        with trio.move_on_at(record.patient_until):
            await record.answered.wait()
        match record.state:
            case IssuedBundle(bundle):
                return bundle
            case RefusedBundle(_, reason, message) as refused:
                raise ObjectError(
                    f"PodCertificateRequest was permanently {refused.verb}: "
                    f"reason={_quoted(reason)} message={_quoted(message)}"
                )
            case AwaitedBundle(problem):
                why = f": {problem}" if problem else ""
                raise ObjectError(f"credential bundle is not issued yet{why}")

    def forget(self, uid: PodUid) -> None:
        """Drop keys and certificates of a pod that is gone; without any, the watch ends."""
        for key in [key for key in self._records if key.uid == uid]:
            record = self._records.pop(key)
            self._tree.stop_child(_child(key, record))
        if not self._records:
            self._tree.stop_child(_REQUESTS)
            self._requests = {}

    def states(self) -> Mapping[tuple[str, str], int]:
        """Return the number of sources by signer and state, for metrics."""
        now = self._clock.time()
        return Counter(
            (record.source.signerName, _metric_state(record.state, now))
            for record in self._records.values()
        )

    def _record(self, pod: Pod, volume: str, index: int) -> _Record:
        key = SourceKey(pod_uid(pod), volume, index)
        record = self._records.get(key)
        if record is None:
            patient_until = trio.current_time() + _FIRST_ANSWER
            record = _Record(pod, _source(pod, key), AwaitedBundle(), patient_until)
            if not self._records:
                self._tree.start_child(ChildSpec(_REQUESTS, self._follow_requests))
            self._records[key] = record
            run = partial(self._keep, record)
            self._tree.start_child(ChildSpec(_child(key, record), run, Restart.TRANSIENT))
        return record

    async def _follow_requests(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Follow the node's requests, the only ones that the Node authorizer lets it list."""
        reflector = Reflector(
            self._api,
            PodCertificateRequest,
            field_selector=f"spec.nodeName={self._node_name}",
            features=self._features,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(reflector.run)
            task_status.started()
            while True:
                self._requests = (await reflector.wait_delivery()).objects
                self._delivered.set()
                self._delivered = trio.Event()

    # One source

    async def _keep(
        self, record: _Record, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Get the certificate of a source, and renew it, until it is refused."""
        task_status.started()
        while not isinstance(record.state, RefusedBundle):
            if isinstance(record.state, IssuedBundle):
                await self._sleep_until(record.state.refresh_at)
            async with trio.open_nursery() as nursery:
                if isinstance(record.state, IssuedBundle):
                    nursery.start_soon(self._report_lateness, record.pod, record.state)
                answer = await self._until_answered(record)
                nursery.cancel_scope.cancel()
            self._take(record, answer)

    async def _sleep_until(self, moment: float) -> None:
        """Sleep until a moment of the wall clock."""
        left = moment - self._clock.time()
        while left > 0:
            await trio.sleep(min(left, _CHECK_PERIOD))
            left = moment - self._clock.time()

    async def _report_lateness(self, pod: Pod, held: IssuedBundle) -> None:
        """Emit events while a renewal takes too long."""
        for moment, reason, message in (
            (
                held.refresh_at + _OVERDUE,
                "CertificateOverdueForRefresh",
                "PodCertificate refresh overdue",
            ),
            (held.not_after, "CertificateExpired", "PodCertificate expired"),
        ):
            await self._sleep_until(moment)
            self._events.emit(pod_object_ref(pod), "Warning", reason, message)

    def _take(self, record: _Record, answer: IssuedBundle | RefusedBundle) -> None:
        record.state = answer
        record.answered.set()
        if isinstance(answer, RefusedBundle):
            was = "was denied" if answer.type == "Denied" else "failed"
            self._events.emit(
                pod_object_ref(record.pod),
                "Warning",
                answer.type,
                f"PodCertificateRequest {answer.request} {was}, "
                f"reason={_quoted(answer.reason)}, message={_quoted(answer.message)}",
            )
        self._changed(pod_uid(record.pod))

    async def _until_answered(self, record: _Record) -> IssuedBundle | RefusedBundle:
        """Request a certificate, again after a failure, until a signer has answered."""
        backoff = Backoff(_RETRY_BASE, _RETRY_CAP, jitter=0.1)
        while True:
            try:
                return await self._request(record)
            except (ObjectError, CertificateError, *API_ERRORS) as exc:
                log.warning("pod_certificates.failed", **about_pod(record.pod), error=str(exc))
                if isinstance(record.state, AwaitedBundle):
                    record.state = AwaitedBundle(str(exc))
                await trio.sleep(backoff.next_delay())

    async def _request(self, record: _Record) -> IssuedBundle | RefusedBundle:
        """Make a key, request a certificate for it, and wait for the answer."""
        namespace = pod_key(record.pod).namespace
        account_name = spec(record.pod).serviceAccountName or "default"
        account = await self._api.get(ServiceAccount, account_name, namespace=namespace)
        node = self._node()
        if node is None:
            raise ObjectError(
                f'while getting node object from local cache: node "{self._node_name}" not found'
            )
        async with self._makers:
            made = await self._make_key(record.source.keyType)
        body = _request_body(record, account, node, made)
        created = await self._api.create(body, namespace=namespace)
        if isinstance(record.state, AwaitedBundle):
            record.state = AwaitedBundle()
        return await self._answer(created, made)

    async def _answer(
        self, created: PodCertificateRequest, made: ProvenKey
    ) -> IssuedBundle | RefusedBundle:
        """Wait for the answer to a request. Raises `ObjectError` if the request is gone."""
        meta = created.metadata or ObjectMeta()
        name, was_seen = (meta.namespace or "", meta.name or ""), False
        abandoned_at = self._clock.time() + _ABANDONED + random.uniform(0, _JITTER)
        while True:
            delivered, found = self._delivered, self._requests.get(name)
            if found is not None:
                was_seen = True
                answer = _read(found, made, "/".join(name))
                if answer is not None:
                    return answer
            elif was_seen or self._clock.time() > abandoned_at:
                # Without having been seen it may only be missing in a list that is not current.
                raise ObjectError(
                    f'PodCertificateRequest "{"/".join(name)}" appears to have been deleted'
                )
            with trio.move_on_after(_CHECK_PERIOD):
                await delivered.wait()


def _request_body(
    record: _Record, account: ServiceAccount, node: Node, made: ProvenKey
) -> PodCertificateRequest:
    key, uid, source = pod_key(record.pod), pod_uid(record.pod), record.source
    owner = OwnerReference(apiVersion="v1", kind="Pod", name=key.name, uid=uid)
    return PodCertificateRequest(
        metadata=ObjectMeta(namespace=key.namespace, generateName="req-", ownerReferences=[owner]),
        spec=PodCertificateRequestSpec(
            signerName=source.signerName,
            podName=key.name,
            podUID=uid,
            serviceAccountName=spec(record.pod).serviceAccountName or "default",
            serviceAccountUID=_uid(account),
            nodeName=spec(record.pod).nodeName or "",
            nodeUID=_uid(node),
            maxExpirationSeconds=source.maxExpirationSeconds,
            stubPKCS10Request=made.request,
            unverifiedUserAnnotations=source.userAnnotations,
        ),
    )


def _read(
    request: PodCertificateRequest, made: ProvenKey, name: str
) -> IssuedBundle | RefusedBundle | None:
    """Return the signer's answer, None while there is none."""
    status = request.status
    for condition in (status.conditions or ()) if status is not None else ():
        if condition.type in ("Denied", "Failed"):
            return RefusedBundle(condition.type, condition.reason, condition.message, name)
        if condition.type == "Issued":
            assert status is not None
            if status.beginRefreshAt is None or status.notAfter is None:
                raise ObjectError(f'PodCertificateRequest "{name}" is issued without its dates')
            return IssuedBundle(
                CredentialBundle(
                    made.key.encode(), certificates_pem(pem_blocks(status.certificateChain or ""))
                ),
                status.beginRefreshAt.timestamp() + random.uniform(0, _JITTER),
                status.notAfter.timestamp(),
            )
    return None


def _metric_state(state: AwaitedBundle | RefusedBundle | IssuedBundle, now: float) -> str:
    match state:
        case AwaitedBundle():
            return "not_yet_issued"
        case RefusedBundle():
            return state.verb
        case IssuedBundle():
            if now > state.not_after:
                return "expired"
            return "overdue_for_refresh" if now > state.refresh_at + _OVERDUE else "fresh"


def _source(pod: Pod, key: SourceKey) -> PodCertificateProjection:
    for volume in spec(pod).volumes or ():
        if volume.name == key.volume and volume.projected is not None:
            found = (volume.projected.sources or ())[key.place].podCertificate
            if found is not None:
                return found
    raise ValueError(f"volume {key.volume} has no podCertificate source {key.place}")


def _child(key: SourceKey, record: _Record) -> str:
    where = pod_key(record.pod)
    return f"certificate:{where.namespace}/{where.name}/{key.volume}/{key.place}@{key.uid}"


def _quoted(text: str) -> str:
    """Return a text in quotes, line breaks escaped: it is a signer's."""
    return msgspec.json.encode(text).decode()


def _uid(found: Node | ServiceAccount) -> str:
    return (found.metadata.uid if found.metadata is not None else None) or ""
