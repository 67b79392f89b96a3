"""Where a runtime says that its streaming server is, and what is said of nonsense."""

from __future__ import annotations

import pytest
import trio.testing

from kubelet_trio.server import HttpError
from kubelet_trio.server.streams.proxy import ask_backend, open_backend


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:port/exec", "http://[::1/exec", "http://h:99999/"]
)
async def test_a_url_that_is_none_is_the_runtimes_failure(url: str) -> None:
    with pytest.raises(HttpError, match="the runtime's streaming server: ") as caught:
        async with open_backend(url):
            pass
    assert caught.value.status == 500


@pytest.mark.parametrize("url", ["http://h/a b", "http://h/\x00", "http://h/\u00fc"])
async def test_a_path_that_cannot_be_asked_for_is_the_runtimes_failure(url: str) -> None:
    ours, _theirs = trio.testing.memory_stream_pair()
    with pytest.raises(HttpError, match="the runtime's streaming server: ") as caught:
        await ask_backend("POST", (), url, ours)
    assert caught.value.status == 500


async def test_a_host_that_no_name_can_be_is_the_runtimes_failure() -> None:
    with pytest.raises(HttpError, match="dial tcp") as caught:
        async with open_backend("http://\ufffd/exec"):
            pass
    assert caught.value.status == 500
