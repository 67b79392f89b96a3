"""What `kubelet-trio ui` says of the page."""

from __future__ import annotations

import pytest

from kubelet_trio.cli.client import ClientError
from kubelet_trio.cli.ui import page_url


def test_the_pages_address_is_its_url() -> None:
    ports = [{"name": "healthz", "address": "127.0.0.1:10248"}]
    ports.append({"name": "ui", "address": "127.0.0.1:10280", "problem": ""})
    assert page_url({"ports": ports}) == "http://127.0.0.1:10280/ui/"


def test_a_page_that_is_off_names_the_flag() -> None:
    with pytest.raises(ClientError, match="--ui-port"):
        page_url({"ports": []})


def test_a_page_whose_port_is_busy_names_the_problem() -> None:
    problem = "--ui-port 127.0.0.1:80: Address already in use"
    with pytest.raises(ClientError, match="Address already in use"):
        page_url({"ports": [{"name": "ui", "address": "127.0.0.1:80", "problem": problem}]})
