"""An independent client of the control plane: kubernetes_asyncio, its loop in a thread of its own.

Objects go in and come out as plain JSON, so that what is compared is what the wire has.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import kubernetes_asyncio.client
import kubernetes_asyncio.config

from tests.harness.pods import Json, WaitTimeoutError

T = TypeVar("T")
_CALL = 30.0  # seconds that one call may take


class KubeCallError(Exception):
    """The API server refused; `status` is the HTTP code."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


class KubeClient:
    """Calls to an API server as the user of a kubeconfig. To be closed."""

    def __init__(self, kubeconfig: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kube-client")
        self._thread.start()
        self._api = self._run(_connect(kubeconfig))

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._run(self._api.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> KubeClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Calls: paths as the API has them, such as /api/v1/namespaces/default/pods

    def get(self, path: str, **query: Any) -> Json:
        """Return an object or a list."""
        return self._call("GET", path, query=query)

    def find(self, path: str) -> Json | None:
        """Return an object, None where there is none."""
        try:
            return self.get(path)
        except KubeCallError as exc:
            if exc.status == 404:
                return None
            raise

    def create(self, path: str, body: Json) -> Json:
        """Create an object in a collection."""
        return self._call("POST", path, body)

    def ensure(self, path: str, body: Json) -> None:
        """Create an object unless there is one of its name."""
        try:
            self.create(path, body)
        except KubeCallError as exc:
            if exc.status != 409:
                raise

    def replace(self, path: str, body: Json) -> Json:
        """Replace an object."""
        return self._call("PUT", path, body)

    def patch(self, path: str, body: Any, kind: str = "merge-patch") -> Json:
        """Patch an object: `merge-patch`, `strategic-merge-patch` or `json-patch`."""
        return self._call("PATCH", path, body, content=f"application/{kind}+json")

    def delete(self, path: str, **options: Any) -> Json:
        """Delete an object, with DeleteOptions such as `gracePeriodSeconds=0`."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        return self._call("DELETE", path, body)

    def wait(
        self, path: str, wanted: Callable[[Json], object], within: float = 60, what: str = ""
    ) -> Json:
        """Ask until an object is there and as wanted, and return it."""
        deadline = time.monotonic() + within
        while True:
            found = self.find(path)
            if found is not None and wanted(found):
                return found
            if time.monotonic() > deadline:
                raise WaitTimeoutError(f"{path} not {what or 'as wanted'} in {within} s: {found}")
            time.sleep(0.1)

    def wait_gone(self, path: str, within: float = 60) -> None:
        """Ask until there is no such object."""
        deadline = time.monotonic() + within
        while (found := self.find(path)) is not None:
            if time.monotonic() > deadline:
                raise WaitTimeoutError(f"{path} not gone in {within} s: {found}")
            time.sleep(0.1)

    def prepare_namespace(self, name: str, authority: Path) -> None:
        """Do for a namespace what the controllers do: it, its service account, its CA's map."""
        self.ensure("/api/v1/namespaces", _named(name))
        base = f"/api/v1/namespaces/{name}"
        self.ensure(f"{base}/serviceaccounts", _named("default"))
        certificates = {**_named("kube-root-ca.crt"), "data": {"ca.crt": authority.read_text()}}
        self.ensure(f"{base}/configmaps", certificates)

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Json | None = None,
        content: str = "application/json",
    ) -> Json:
        return self._run(self._send(method, path, body, query or {}, content))

    async def _send(self, method: str, path: str, body: Any, query: Json, content: str) -> Json:
        headers = {"Accept": "application/json", "Content-Type": content}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"])
        url = self._api.configuration.host + path
        try:
            answer = await self._api.request(
                method, url, list(query.items()), headers, body=body, _request_timeout=_CALL
            )
        except kubernetes_asyncio.client.ApiException as exc:
            raise KubeCallError(exc.status or 0, str(exc.body)) from None
        found: Json = json.loads(answer.data)
        return found

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL + 5)


async def _connect(kubeconfig: Path) -> Any:
    configuration = kubernetes_asyncio.client.Configuration()
    await kubernetes_asyncio.config.load_kube_config(
        str(kubeconfig), client_configuration=configuration
    )
    return kubernetes_asyncio.client.ApiClient(configuration)


def _named(name: str) -> Json:
    return {"metadata": {"name": name}}
