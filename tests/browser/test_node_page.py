"""The node page as its users see it: Chromium, a real agent, real pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import HOSTILE
from tests.faults.bed import Bed

Node = tuple[Bed, str]


def card(name: str) -> str:
    return f"document.querySelector('[data-pod^=\"default/{name}-\"]')"


def text_of(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).innerText"


def assert_unharmed(page: Page, url: str) -> None:
    """Nothing complained, nothing came from elsewhere, and no text became HTML."""
    assert page.complaints == []
    origin = url.removesuffix("/ui/")
    assert [u for u in page.asked if not u.startswith((f"{origin}/ui/", "data:"))] == []
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.body.dataset.owned") is None


def test_the_page_shows_the_node_and_follows_it(node: Node, page: Page) -> None:
    bed, url = node
    page.open(url)
    page.wait("Number(document.body?.dataset.looks) >= 3")
    name = page.evaluate(text_of("#node-name"))
    assert name == bed.agent.ask("/status")["node_name"]
    assert "runtime ok" in page.evaluate(text_of("#checks"))
    page.wait("document.querySelectorAll('#node-plots svg .line-1[d*=L]').length >= 2")
    page.wait(f"/GiB|MiB/.test({text_of('#node-plots')})")
    page.wait(f"{card('web')}.innerText.includes('Running')")
    page.wait(f"/CrashLoopBackOff/.test({card('crash')}.innerText)")
    page.wait(f"/[1-9]\\d* restart/.test({card('crash')}.innerText)")
    page.wait(f"{text_of('#events')}.includes('Pod/default/crash-')")
    page.wait(f"/[1-9]m|cores/.test({text_of('#node-plots')})")
    assert "pleg" in page.evaluate(text_of("#tree"))
    assert f"default/web-{name}@" in page.evaluate(text_of("#tree"))

    bed.agent.put(bed.pod("late"))
    page.wait(f"{card('late')}?.innerText.includes('Running')")
    bed.agent.drop("late")
    page.wait(f"{card('late')} === null")
    assert_unharmed(page, url)


def test_a_card_opens_on_its_containers_and_stays_open(node: Node, page: Page) -> None:
    _, url = node
    page.open(url)
    page.wait(f"{card('crash')} && {card('web')}")
    page.evaluate(f"{card('crash')}.querySelector('summary').click()")
    # The hostile text is the container's message: it is there, as text.
    page.wait(f"{card('crash')}.innerText.includes({json.dumps(HOSTILE)})")
    page.wait(f"/exit 3/.test({card('crash')}.innerText)")
    looks = page.evaluate("Number(document.body.dataset.looks)")
    page.wait(f"Number(document.body.dataset.looks) > {looks + 1}")
    assert page.evaluate(f"{card('crash')}.open")
    page.evaluate(f"{card('web')}.querySelector('summary').click()")
    page.wait(f"{card('web')}.querySelectorAll('.line-1[d*=L]').length >= 1")
    page.wait(f"/\\dm|cores/.test({card('web')}.querySelector('.cpu').innerText)")
    assert_unharmed(page, url)


def test_a_log_is_followed(node: Node, page: Page) -> None:
    _, url = node
    page.open(url)
    page.wait(f"{card('web')}")
    page.evaluate(f"{card('web')}.querySelector('summary').click()")
    page.evaluate(f"{card('web')}.querySelector('button').click()")
    log = "document.getElementById('log-text').textContent"
    page.wait(f"{log}.includes('first')")
    assert HOSTILE in page.evaluate(log)
    seen = page.evaluate(f"{log}.length")
    page.wait(f"{log}.length > {seen} && document.getElementById('log').open")
    page.evaluate("document.getElementById('log-close').click()")
    page.wait("!document.getElementById('log').open")
    assert_unharmed(page, url)


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [
        ("light", 1280, False),
        ("dark", 1280, True),
        ("phone", 360, False),
        ("phone-dark", 360, True),
    ],
)
def test_it_fits_its_window_in_light_and_dark(
    node: Node, page: Page, shots: Path, name: str, width: int, dark: bool
) -> None:
    _, url = node
    page.look_like(width=width, height=900, dark=dark)
    page.open(url)
    page.wait("Number(document.body?.dataset.looks) >= 4")
    page.evaluate(f"{card('crash')}.querySelector('summary').click()")
    page.wait(f"{card('crash')}.open")
    page.screenshot(shots / f"{name}.png")
    # Nothing is wider than the window.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    channels = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (max(channels) < 80) is dark
    page.evaluate(f"{card('web')}.querySelector('button').click()")
    page.wait("document.getElementById('log-text').textContent.includes('again')")
    page.screenshot(shots / f"{name}-log.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert_unharmed(page, url)
