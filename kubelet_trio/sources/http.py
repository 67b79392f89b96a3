"""Source `http`: runs the pods of the manifest URL, requested every `interval`.

A response counts only as a whole: status 200, the full body within the time limit, and every
pod valid. Otherwise the last snapshot stays in force, and `problems` says why. Only an empty
body and an empty list mean "no pods". A body that did not change is not parsed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from kubelet_trio.model import (
    Latest,
    Offload,
    PodUid,
    Purpose,
    SystemClock,
    WallClock,
    blake2b,
    pod_uid,
    system_tls,
    thread_offload,
    without_secrets,
    without_user,
)
from kubelet_trio.sources.errors import ManifestError
from kubelet_trio.sources.manifest.decode import MAX_MANIFEST_SIZE
from kubelet_trio.sources.manifest.load import Manifest, load_manifest
from kubelet_trio.sources.manifest.static import mark_seen, seen_at, seen_now
from kubelet_trio.sources.source import SourceProblem, SourceProblems, SourceSnapshot, problems_of

if TYPE_CHECKING:
    import httpx2

SOURCE = "http"

_TIMEOUT = 10.0  # seconds for a request and its response, as in the Go kubelet


class _FetchError(Exception):
    """No usable response this time. The text says why."""


@dataclass(frozen=True, slots=True)
class _Response:
    body: bytes
    etag: str


class HttpSource:
    """Source `http`. Snapshots go out when they change, problems are in `problems`."""

    name = SOURCE

    def __init__(
        self,
        url: str,
        node_name: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        interval: float = 20.0,
        transport: httpx2.AsyncBaseTransport | None = None,
        offload: Offload = thread_offload.of(Purpose.SOURCES),
        clock: WallClock | None = None,
        known: Iterable[PodUid] = (),
        local_claims: bool = True,
    ) -> None:
        """Set the source up; `run` does the work.

        Args:
            url: where the manifest is.
            node_name: added to the names of the pods, as the Go kubelet does.
            headers: sent with every request (`--manifest-url-header`); a name may repeat.
            interval: seconds between requests (`httpCheckFrequency`).
            transport: replaces the network in tests.
            offload: parses manifests in threads.
            clock: for `config.seen`.
            known: the pods from before the agent's restart, of any source: see `manifest_uid`.
            local_claims: whether pods may use claims: the node has no API server.
        """
        self.url = url
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self._node_name = node_name
        self._local_claims = local_claims
        # No compression: the body is read as it arrives, so that its size can be limited.
        self._headers = [("Accept-Encoding", "identity"), *headers]
        # An explicit Authorization header wins over user and password in the URL.
        given = any(name.lower() == "authorization" for name, _ in headers)
        self._target = without_user(url) if given else url
        self._interval = interval
        self._transport = transport
        self._offload = offload
        self._clock = clock or SystemClock()
        self._problems = SourceProblems()
        self.problems = self._problems.now
        self._shown = without_secrets(url)
        self._known = frozenset(known)  # the desired pods
        self._etag = ""
        self._digest = b""  # of the last body
        self._invalid: tuple[SourceProblem, ...] = ()  # the errors in that body
        self.delivered: SourceSnapshot | None = None

    @property
    def origin(self) -> str:
        """The URL without secrets, for the tree, its log lines and `status`."""
        return self._shown

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Request, deliver, sleep; until cancelled."""
        import httpx2  # deferred: an agent without a manifest URL does not load it

        task_status.started()
        context = await self._offload(system_tls)
        async with httpx2.AsyncClient(
            transport=self._transport,
            verify=context,
            timeout=_TIMEOUT,
            follow_redirects=True,  # as Go's http.Client
        ) as client:
            while True:
                await self._round(client)
                await trio.sleep(self._interval)

    async def _round(self, client: httpx2.AsyncClient) -> None:
        """Request once and act on the response."""
        try:
            # httpx2 limits each read alone: a server that sends a byte now and then would pass.
            with trio.fail_after(_TIMEOUT):
                response = await self._fetch(client)
        except trio.TooSlowError:
            self._report(f"no complete answer within {_TIMEOUT:g} s")
        except _FetchError as exc:
            self._report(str(exc))
        else:
            if response is not None:
                await self._take(response)
            self._report()

    async def _fetch(self, client: httpx2.AsyncClient) -> _Response | None:
        """Return the response; None if it has not changed. Raises _FetchError."""
        import httpx2

        headers = [*self._headers, *([("If-None-Match", self._etag)] if self._etag else [])]
        try:
            async with client.stream("GET", self._target, headers=headers) as response:
                # Only if we sent an ETag: an unrequested 304 has no content to fall back on.
                if response.status_code == 304 and self._etag:
                    return None
                if response.status_code != 200:
                    reason = f"{response.status_code} {response.reason_phrase}".strip()
                    raise _FetchError(f"answered {reason}")
                body = bytearray()
                # Raw: a body that is compressed in spite of `identity` must not be inflated.
                async with aclosing(response.aiter_raw()) as chunks:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) > MAX_MANIFEST_SIZE:
                            raise _FetchError(f"larger than {MAX_MANIFEST_SIZE // 2**20} MiB")
                etag = response.headers.get("ETag", "")
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise _FetchError(str(exc) or type(exc).__name__) from exc
        return _Response(bytes(body), etag)

    async def _take(self, response: _Response) -> None:
        """Load a new body and deliver its pods, or note its errors."""
        digest = blake2b(response.body).digest()
        if digest != self._digest:
            try:
                manifest = await self._load(response.body)
            except ManifestError as exc:
                self._invalid = problems_of(ManifestError(self._shown, exc.errors), SOURCE)
            else:
                self._invalid = ()
                self._deliver(manifest)
        # Last: after a crash in between, the server must send the body again, not 304.
        self._etag, self._digest = response.etag, digest

    async def _load(self, body: bytes) -> Manifest:
        if not body:  # no pods, as in the Go kubelet (pkg/kubelet/config/http.go)
            return Manifest()
        return await self._offload(
            load_manifest,
            body,
            self.url,
            node_name=self._node_name,
            source=SOURCE,
            is_known=self._known.__contains__,
            local_claims=self._local_claims,
        )

    def _deliver(self, manifest: Manifest) -> None:
        now = seen_now(self._clock.time())
        self._known = frozenset(pod_uid(pod) for pod in manifest.pods)
        before = self.delivered.pods if self.delivered is not None else ()
        seen = {pod_uid(pod): seen_at(pod) for pod in before}
        snapshot = SourceSnapshot(
            SOURCE,
            tuple(mark_seen(pod, seen.get(pod_uid(pod), now)) for pod in manifest.pods),
            manifest.objects,
        )
        if snapshot != self.delivered:
            self.delivered = snapshot
            self.snapshots.put(snapshot)

    def _report(self, message: str = "") -> None:
        fetch = (SourceProblem(SOURCE, self._shown, message),) if message else ()
        self._problems.report((*fetch, *self._invalid))
