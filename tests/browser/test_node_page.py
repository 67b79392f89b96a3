"""The node page as its users see it: Chromium, a real agent, real pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import APPEARANCES, HOSTILE, SECRET
from tests.faults.bed import Bed

Node = tuple[Bed, str]
PANEL = "document.getElementById('panel')"
LOG = "document.getElementById('log-text')"
LOOKS = "Number(document.body?.dataset.looks)"


def row(name: str, namespace: str = "default") -> str:
    return f"document.querySelector('[data-pod^=\"{namespace}/{name}-\"]')"


def text_of(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)})?.innerText"


def names(page: Page) -> list[str]:
    """Return the names of the rows that are shown, from top to bottom."""
    shown = "[...document.querySelectorAll('#pods tbody tr:not([hidden]) a')]"
    found: list[str] = page.evaluate(f"{shown}.map((a) => a.innerText)")
    return found


def open_pod(page: Page, name: str, namespace: str = "default") -> None:
    page.wait(row(name, namespace))
    page.evaluate(f"{row(name, namespace)}.click()")
    page.wait("document.getElementById('drawer').open")


def tab(page: Page, name: str) -> None:
    page.evaluate(f"document.getElementById('tab-{name}').click()")


def press(page: Page, key: str, shift: bool = False) -> None:
    """Press a key as a user does: default actions happen."""
    text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
    common: dict[str, Any] = {"key": key, "modifiers": 8 if shift else 0}
    codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38}
    codes |= {"ArrowLeft": 37, "ArrowRight": 39, "End": 35, "Home": 36}
    common["windowsVirtualKeyCode"] = codes.get(key, ord(key[0].upper()))
    kind = "keyDown" if text else "rawKeyDown"
    page.call("Input.dispatchKeyEvent", type=kind, text=text, **common)
    page.call("Input.dispatchKeyEvent", type="keyUp", **common)


def focused(page: Page) -> str:
    """Return what has the focus, in words."""
    found: str = page.evaluate(
        "document.activeElement.id || document.activeElement.innerText || "
        "document.activeElement.tagName"
    )
    return found


def assert_unharmed(page: Page, url: str) -> None:
    """Nothing complained, nothing came from elsewhere, and no text became HTML."""
    assert page.complaints == []
    origin = url.removesuffix("/ui/")
    assert [u for u in page.asked if not u.startswith((f"{origin}/ui/", "data:"))] == []
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.body.dataset.owned") is None
    assert SECRET not in page.evaluate("document.documentElement.innerText")


def test_the_page_shows_the_node_and_follows_it(node: Node, page: Page) -> None:
    bed, url = node
    page.open(url)
    page.wait(f"{LOOKS} >= 3")
    name = page.evaluate(text_of("#node-name"))
    assert name == bed.agent.ask("/status")["node_name"]
    assert "runtime ok" in page.evaluate(text_of("#checks"))
    page.wait("document.querySelectorAll('#node-plots svg .line-1[d*=L]').length >= 2")
    assert " of " in page.evaluate(text_of("#node-plots"))
    assert "core" in page.evaluate(text_of("#node-plots"))
    page.wait(f"/1.1.*Running.*0/s.test({row('web')}.innerText)")
    page.wait(f"/0.1.*CrashLoopBackOff/s.test({row('crash')}.innerText)")
    page.wait(f"{text_of('#events')}.includes('Pod/default/crash-')")
    page.wait(f"{row('web')}.querySelector('.cpu .line-1[d*=L]') && 1")
    # The tree is folded until it is asked for.
    assert page.evaluate("document.getElementById('tree').childElementCount") == 0
    page.evaluate("document.querySelector('#tree-box summary').click()")
    page.wait(f"{text_of('#tree')}.includes('default/web-{name}@')")

    late = bed.pod("late")
    bed.agent.put(late)
    page.wait(f"{row('late')}?.innerText.includes('Running')")
    # A broken edit: the pod runs on, and the problem is told.
    late["spec"]["containers"][0]["imagee"] = "x"
    bed.agent.put(late)
    page.wait(f"{row('late')}.querySelector('.note').innerText.includes('did you mean')")
    assert page.evaluate("document.getElementById('problems').hidden")
    bed.agent.drop("late")
    page.wait(f"{row('late')} === null")
    assert_unharmed(page, url)


def test_plots_are_full_when_the_page_is_opened(node: Node, page: Page) -> None:
    _, url = node
    page.open(url)
    page.wait(f"{LOOKS} >= 1")
    # A look is every two seconds: what is older than the page came from the agent.
    told = page.evaluate("fetch('history').then((a) => a.json())")
    assert len(told["times"]) == len(told["node"]["memory"]) >= 1
    assert told["times"][0] < page.evaluate("performance.timeOrigin / 1000")
    line = "document.querySelector('#node-plots .plot:nth-child(2) .line-1').getAttribute('d')"
    page.wait(f"({line}.match(/[ML]/g) ?? []).length >= 2")


def test_pods_are_sorted_filtered_and_chosen_by_namespace(node: Node, page: Page) -> None:
    _, url = node
    page.open(url)
    page.wait(f"/CrashLoopBackOff/.test({row('crash')}?.innerText)")
    assert names(page)[0].startswith("default/crash")  # bad pods first
    sort = "document.querySelector('#pods thead .name')"
    page.evaluate(f"{sort}.querySelector('button').click()")
    assert names(page) == sorted(names(page))
    assert page.evaluate(f"{sort}.getAttribute('aria-sort')") == "ascending"
    page.evaluate(f"{sort}.querySelector('button').click()")
    assert names(page) == sorted(names(page), reverse=True)
    page.evaluate("document.querySelector('#namespaces [data-value=shop]').click()")
    assert [name.split("/")[0] for name in names(page)] == ["shop"]
    page.evaluate("document.querySelector('#namespaces [data-value=\"\"]').click()")
    press(page, "/")
    for letter in "crash":
        press(page, letter)
    assert [name[:13] for name in names(page)] == ["default/crash"]
    for letter in " none":
        press(page, letter)
    assert page.evaluate(text_of("#no-pods")) == "No pod matches."
    press(page, "Escape")
    assert len(names(page)) >= 3
    assert_unharmed(page, url)


def test_a_pod_is_told_in_full(node: Node, page: Page) -> None:
    _, url = node
    page.open(url)
    open_pod(page, "web")
    page.wait(f"{PANEL}.innerText.includes('PASSWORD')")
    told = page.evaluate(f"{PANEL}.innerText")
    for words in ("/scratch", "exec ['true']", "limit 64", "request 50m", "emptyDir", "Burstable"):
        assert words in told, words
    assert "kubelet-trio --root-dir" in told
    assert page.evaluate(f"{PANEL}.querySelectorAll('.mark.limit').length") == 4
    page.wait(f"{PANEL}.querySelectorAll('.plot .line-1[d*=L]').length >= 2")
    tab(page, "yaml")
    page.wait(f"{PANEL}.innerText.includes('name: PASSWORD')")
    assert "value: (left out)" in page.evaluate(f"{PANEL}.innerText")
    tab(page, "events")
    page.wait(f"{PANEL}.innerText.includes('Started')")
    # The address leads here again, and "back" to the list.
    address = page.evaluate("location.href")
    assert address.endswith("/events")
    page.evaluate("history.back()")
    page.wait("!document.getElementById('drawer').open")
    page.open("about:blank")
    page.open(address)
    page.wait(f"{PANEL}?.innerText.includes('Started')")
    assert_unharmed(page, url)


def test_why_a_pod_is_not_ready_and_that_a_pod_is_gone(node: Node, page: Page) -> None:
    bed, url = node
    page.open(url)
    open_pod(page, "crash")
    page.wait(f"/Why it is not ready/i.test({PANEL}.innerText)")
    # The hostile text is the container's message: it is there, as text.
    page.wait(f"{PANEL}.innerText.includes({json.dumps(HOSTILE)})")
    page.wait(f"/exit 3/.test({PANEL}.innerText)")
    bed.agent.put(bed.pod("brief"))
    page.evaluate("document.getElementById('drawer-close').click()")
    open_pod(page, "brief")
    bed.agent.drop("brief")
    page.wait(f"{text_of('#drawer-trouble')}.includes('not on the node')")
    assert_unharmed(page, url)


def test_a_log_is_followed_searched_and_filtered(node: Node, page: Page) -> None:
    _, url = node
    page.open(url)
    open_pod(page, "web")
    tab(page, "logs")
    page.wait(f"{LOG}?.textContent.includes('first')")
    lines = f"[...{LOG}.querySelectorAll('.line')]"
    assert HOSTILE in page.evaluate(f"{LOG}.textContent")
    assert "\x1b" not in page.evaluate(f"{LOG}.textContent")
    seen = page.evaluate(f"{lines}.length")
    page.wait(f"{lines}.length > {seen}")
    assert "Following" in page.evaluate(text_of("#log-follow"))
    find = "document.getElementById('log-search')"
    page.evaluate(f"{find}.value = 'again'; {find}.dispatchEvent(new Event('input'))")
    page.evaluate(f"{find}.focus()")
    press(page, "Enter")
    press(page, "Enter")
    page.wait(f"/2 of [2-9]|2 of \\d\\d/.test({text_of('.log-tools .count')})")
    page.wait(f"/Paused|End/.test({text_of('#log-follow')})")
    page.evaluate("document.getElementById('log-only').click()")
    assert (
        page.evaluate(f"{lines}.filter((l) => !l.hidden && /first/.test(l.innerText)).length") == 0
    )
    page.evaluate("document.getElementById('log-stamps').click()")
    page.wait(f"/^20\\d\\d-/.test({lines}.find((l) => !l.hidden).innerText)")
    link = "document.getElementById('log-download')"
    loaded = page.evaluate(f"fetch({link}.href).then((a) => a.text())")
    assert "first" in loaded
    page.evaluate("document.getElementById('log-follow').click()")
    page.wait(f"/Following/.test({text_of('#log-follow')})")
    assert_unharmed(page, url)


def test_a_log_without_output_and_that_of_the_previous_instance(node: Node, page: Page) -> None:
    _, url = node
    page.open(url)
    open_pod(page, "quiet", "shop")
    tab(page, "logs")
    page.wait(f"{PANEL}.innerText.includes('No output yet.')")
    page.evaluate("document.getElementById('drawer-close').click()")
    page.wait("!document.getElementById('drawer').open")
    page.wait(f"/[2-9]|\\d\\d/.test({row('crash')}.querySelector('.restarts').innerText)")
    open_pod(page, "crash")
    tab(page, "logs")
    page.wait("document.getElementById('log-previous')?.disabled === false")
    page.evaluate("document.getElementById('log-previous').click()")
    page.wait(f"{LOG}.textContent.includes({json.dumps(HOSTILE)})")
    page.wait(f"/End of the log/.test({text_of('#log-follow')})")
    # A log of an instance that is removed meanwhile is refused, in words: that is no fault.
    page.complaints = [c for c in page.complaints if "/ui/logs/" not in c]
    assert_unharmed(page, url)


def test_the_keyboard_suffices(node: Node, page: Page) -> None:
    _, url = node
    page.open(url)
    page.wait(f"/CrashLoopBackOff/.test({row('crash')}?.innerText)")
    press(page, "/")
    assert focused(page) == "filter"
    press(page, "ArrowDown")
    assert focused(page) == names(page)[0]
    press(page, "ArrowDown")
    assert focused(page) == names(page)[1]
    press(page, "End")
    assert focused(page) == names(page)[-1]
    press(page, "Home")
    first = focused(page)
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    press(page, "Enter")
    page.wait("document.getElementById('drawer').open")
    for _ in range(6):  # Tab reaches the tabs, and never leaves the drawer
        press(page, "Tab")
        if focused(page).startswith("tab-"):
            break
    assert focused(page) == "tab-details"
    press(page, "ArrowRight")
    assert focused(page) == "tab-logs"
    press(page, "ArrowLeft")
    press(page, "Escape")
    page.wait("!document.getElementById('drawer').open")
    assert focused(page) == first
    assert_unharmed(page, url)


def findings(page: Page, axe: str) -> list[str]:
    """Return what axe-core has against the page as it is."""
    page.evaluate(f"window.axe || (0, eval)({json.dumps(axe)}); 0")
    told = page.evaluate(
        "axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations.map("
        "(v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html).join(' | ')}`))"
    )
    return list(told)


@pytest.mark.parametrize(("name", "width", "dark"), APPEARANCES)
def test_every_state_fits_and_is_accessible(
    node: Node, page: Page, shots: Path, axe: str, name: str, width: int, dark: bool
) -> None:
    _, url = node
    page.look_like(width=width, height=900, dark=dark)
    page.call("Page.setBypassCSP", enabled=True)  # for axe-core, which is given by the test
    page.open(url)
    page.wait(f"/CrashLoopBackOff/.test({row('crash')}?.innerText)")
    channels = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (max(channels) < 80) is dark
    page.evaluate("document.querySelector('#tree-box summary').click()")

    def check(state: str) -> None:
        page.screenshot(shots / f"{name}-{state}.png")
        # Nothing is wider than the window.
        assert page.evaluate("document.documentElement.scrollWidth") <= width, state
        assert page.evaluate(f"{PANEL}.scrollWidth <= {PANEL}.clientWidth + 1"), state
        assert findings(page, axe) == [], state

    page.wait("document.getElementById('tree').childElementCount")
    check("list")
    open_pod(page, "crash")
    page.wait(f"{PANEL}.innerText.includes('KT_POD') && /exit 3/.test({PANEL}.innerText)")
    check("details")
    for state in ("events", "yaml", "logs"):
        tab(page, state)
        page.wait(
            f"{PANEL}.innerText.includes('Back-off') || {PANEL}.innerText.includes('onerror')"
        )
        check(state)
    page.evaluate("document.getElementById('drawer-close').click()")
    page.evaluate("document.getElementById('filter').value = 'nothing like that'")
    page.evaluate("document.getElementById('filter').dispatchEvent(new Event('input'))")
    page.wait("!document.getElementById('no-pods').hidden")
    check("no-match")
