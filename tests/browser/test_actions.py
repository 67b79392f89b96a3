"""What the owner does on the page: signs in, restarts, and works in a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import APPEARANCES, HOSTILE, SECRET
from tests.browser.test_node_page import (
    LOOKS,
    PANEL,
    Node,
    findings,
    focused,
    open_pod,
    press,
    row,
    tab,
    text_of,
)
from tests.faults.bed import Bed

LINES = "document.querySelector('.term-lines')"
NOTE = text_of("#term-note")
SIGNED_IN = "document.getElementById('sign-out')"


def login_url(bed: Bed) -> str:
    """Return what `kubelet-trio ui --no-open` prints."""
    program = "from kubelet_trio.cli import main; main()"
    root = bed.agent.base / "root"
    told = subprocess.run(
        [sys.executable, "-c", program, "--root-dir", str(root), "ui", "--no-open"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return told.stdout.strip()


def sign_in(node: Node, page: Page) -> str:
    """Open the page by the printed URL; return that."""
    bed, _ = node
    url = login_url(bed)
    page.open(url)
    page.wait(SIGNED_IN)
    page.wait(f"{LOOKS} >= 1")
    return url


def reload(page: Page) -> None:
    page.evaluate("window.isOld = true")
    page.call("Page.reload")
    page.wait("!window.isOld")


def type_text(page: Page, text: str) -> None:
    for letter in text:
        if letter == "\n":
            press(page, "Enter")
            continue
        page.call("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter)
        page.call("Input.dispatchKeyEvent", type="keyUp", key=letter)


def ctrl(page: Page, letter: str) -> None:
    common = {"key": letter, "modifiers": 2, "windowsVirtualKeyCode": ord(letter.upper())}
    page.call("Input.dispatchKeyEvent", type="rawKeyDown", **common)
    page.call("Input.dispatchKeyEvent", type="keyUp", **common)


def open_terminal(page: Page, pod: str = "web") -> None:
    open_pod(page, pod)
    tab(page, "terminal")
    page.wait("document.querySelector('#term-go')")
    page.evaluate("document.getElementById('term-command').focus()")
    press(page, "Enter")
    page.wait(f"{NOTE}.includes('runs in main')")
    assert focused(page) == "term-input"


def assert_unharmed(page: Page, url: str) -> None:
    assert page.complaints == []
    origin = url.partition("/ui/")[0]
    wanted = (f"{origin}/ui/", "data:", f"{origin.replace('http', 'ws')}/ui/exec/")
    assert [u for u in page.asked if not u.startswith(wanted)] == []
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.body.dataset.owned") is None
    assert SECRET not in page.evaluate("document.documentElement.innerText")


def test_without_a_session_the_page_only_reads_and_tells_how_to_sign_in(
    node: Node, page: Page
) -> None:
    bed, url = node
    page.open(url)
    page.wait(f"{LOOKS} >= 1")
    command = f"kubelet-trio --root-dir {bed.agent.base / 'root'} ui"
    assert f"Read-only. To act here, run {command} and" in page.evaluate(text_of("#session"))
    open_pod(page, "web")
    page.wait(f"{PANEL}.innerText.includes('PASSWORD')")
    assert page.evaluate("document.getElementById('tab-terminal')") is None
    assert "Restart" not in page.evaluate(
        f"[...{PANEL}.querySelectorAll('button')].map((b) => b.innerText).join()"
    )
    # Nor by the address.
    page.evaluate("location.hash += '/terminal'")
    page.wait("location.hash.endsWith('/terminal')")
    assert page.evaluate("document.getElementById('tab-terminal')") is None
    assert_unharmed(page, url)


def test_the_printed_address_signs_in_once(node: Node, page: Page) -> None:
    url = sign_in(node, page)
    token = url.rpartition("/")[2]
    assert token not in page.evaluate("location.href")
    assert "owner" in page.evaluate(text_of("#session"))
    assert not page.evaluate("document.cookie")  # scripts cannot read it
    key = page.evaluate("sessionStorage.getItem('kubelet-trio-key')")
    # A reload keeps it: the key is of this tab.
    reload(page)
    page.wait(f"{LOOKS} >= 1 && {SIGNED_IN}")
    # Neither secret is in any address that was asked for.
    assert [u for u in page.asked if token in u or key in u] == []
    # The cookie alone, as another tab has it, opens nothing.
    page.evaluate("sessionStorage.clear()")
    reload(page)
    page.wait(f"{LOOKS} >= 1 && document.getElementById('session').innerText")
    assert "Read-only" in page.evaluate(text_of("#session"))
    assert page.complaints == []
    # The address is used up, and the page says so.
    page.open("about:blank")
    page.open(url)
    page.wait(f"/works once/.test({text_of('#session')})")
    assert page.evaluate(SIGNED_IN) is None
    assert all("/ui/login" in complaint for complaint in page.complaints)


def test_signing_out_ends_it(node: Node, page: Page) -> None:
    url = sign_in(node, page)
    open_terminal(page)
    page.evaluate("document.getElementById('drawer-close').click()")
    page.evaluate(f"{SIGNED_IN}.click()")
    page.wait(f"/Signed out/.test({text_of('#session')})")
    assert page.evaluate("sessionStorage.length") == 0
    assert_unharmed(page, url)


def test_a_page_of_another_port_cannot_act(node: Node, page: Page, tmp_path: Path) -> None:
    """The same host, so the same site: the browser itself sends the cookie along."""
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Handler(SimpleHTTPRequestHandler):
        seen: list[str] = []  # noqa: RUF012  # of the class, which the server makes anew each time

        def do_GET(self) -> None:
            self.seen.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    url = sign_in(node, page)
    key = page.evaluate("sessionStorage.getItem('kubelet-trio-key')")
    origin = url.partition("/ui/")[0]
    pod = page.evaluate(f"{row('web')}.dataset.pod")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        page.open(f"http://127.0.0.1:{server.server_port}/ui/x")
        page.wait(f"location.port === '{server.server_port}' && document.readyState === 'complete'")
        # That is why the cookie alone opens nothing.
        assert any("kubelet-trio-" in cookie for cookie in Handler.seen)
        assert page.evaluate("sessionStorage.length") == 0
        target = json.dumps(f"{origin}/ui/restart/{pod}")
        for options in (
            "{ method: 'POST', mode: 'no-cors', credentials: 'include' }",
            "{ method: 'POST', credentials: 'include', "
            f"headers: {{ 'X-Kubelet-Trio-Key': {json.dumps(key)} }} }}",
        ):
            page.evaluate(f"fetch({target}, {options}).then(() => 0, () => 0)")
        socket = json.dumps(f"{origin.replace('http', 'ws')}/ui/exec/{pod}/main?command=sh")
        protocols = json.dumps(["v5.channel.k8s.io", f"key.kubelet-trio.{key}"])
        opened = page.evaluate(
            f"new Promise((done) => {{ const s = new WebSocket({socket}, {protocols});"
            "s.onopen = () => done(true); s.onerror = () => done(false); })"
        )
        assert opened is False
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    page.open(f"{origin}/ui/")
    page.wait(f"/1.1.*Running/s.test({row('web')}?.innerText)")
    assert page.evaluate(f"{row('web')}.querySelector('.restarts').innerText") == "0"


def restarts(page: Page) -> int:
    return int(page.evaluate(f"{row('again')}.querySelector('.restarts').innerText"))


def test_a_container_is_restarted_after_a_question(node: Node, page: Page) -> None:
    bed, _ = node
    bed.agent.put(bed.pod("again"))
    bed.agent.wait_ready("again")
    url = sign_in(node, page)
    open_pod(page, "again")
    page.wait(f"{PANEL}.querySelector('[aria-label=\"Restart main\"]')")
    before = restarts(page)
    page.evaluate(f"{PANEL}.querySelector('[aria-label=\"Restart main\"]').focus()")
    press(page, "Enter")
    page.wait("document.querySelector('dialog.confirm[open]')")
    assert focused(page) == "Cancel"  # Enter alone changes nothing
    press(page, "Enter")
    page.wait("!document.querySelector('dialog.confirm')")
    assert page.evaluate("document.getElementById('drawer').open")
    press(page, "Enter")
    page.wait("document.querySelector('dialog.confirm[open]')")
    press(page, "Escape")
    page.wait("!document.querySelector('dialog.confirm')")
    assert page.evaluate("document.getElementById('drawer').open")
    assert restarts(page) == before
    press(page, "Enter")
    page.wait("document.querySelector('dialog.confirm[open]')")
    press(page, "Tab")
    assert focused(page) == "confirm-yes"
    press(page, "Enter")
    page.wait(f"/Restarting: main/.test({text_of('.done')})")
    page.wait(f"{row('again')}.querySelector('.restarts').innerText > {before}")
    page.wait(f"/running/.test({PANEL}.innerText)")
    assert_unharmed(page, url)
    audit = bed.agent.output.read_text(errors="replace")
    assert "ui.restart" in audit
    bed.agent.drop("again")


def test_a_restart_that_is_refused_is_told_in_words(node: Node, page: Page) -> None:
    bed, _ = node
    once = bed.pod("once")
    once["spec"]["restartPolicy"] = "Never"
    bed.agent.put(once)
    bed.agent.wait_ready("once")
    url = sign_in(node, page)
    open_pod(page, "once")
    page.wait(f"{PANEL}.querySelector('[aria-label=\"Restart all containers\"]')")
    page.wait(f"{PANEL}.querySelector('[data-container=main]')")
    page.evaluate(f"{PANEL}.querySelector('[aria-label=\"Restart all containers\"]').focus()")
    press(page, "Enter")
    page.wait("document.querySelector('dialog.confirm[open]')")
    page.evaluate("document.getElementById('confirm-yes').click()")
    page.wait(
        f"/Not restarted: restartPolicy Never: main may run only once/.test({text_of('.done')})"
    )
    page.complaints = [c for c in page.complaints if "409 (Conflict)" not in c]
    assert_unharmed(page, url)
    bed.agent.drop("once")


def test_a_terminal_runs_commands_and_tells_how_they_end(node: Node, page: Page) -> None:
    url = sign_in(node, page)
    open_terminal(page)
    type_text(page, "echo hello-$((6*7))\n")
    page.wait(f"/^hello-42$/m.test({LINES}.innerText)")
    # A terminal it is, as large as what is seen, and it follows.
    type_text(page, "tty; stty size\n")
    page.wait(f"/^\\d+ \\d+$/m.test({LINES}.innerText)")
    assert "not a tty" not in page.evaluate(f"{LINES}.innerText")
    first = page.evaluate(f"{LINES}.innerText.match(/^\\d+ \\d+$/m)[0]")
    page.look_like(width=900, height=500)
    page.call("Page.bringToFront")
    type_text(page, "clear; stty size\n")
    page.wait(f"({LINES}.innerText.match(/^\\d+ \\d+$/m) ?? ['{first}'])[0] !== '{first}'")
    # Ctrl-C ends what runs, and not the shell, once it runs: while the shell edits, it is a key.
    type_text(page, "echo runs-$((1+1)); sleep 1000\n")
    page.wait(f"/^runs-2$/m.test({LINES}.innerText)")
    ctrl(page, "c")
    type_text(page, "echo still-$((1+1))\n")
    page.wait(f"/^still-2$/m.test({LINES}.innerText)")
    # What a program writes is text.
    type_text(page, f"printf '%s\\n' \"{HOSTILE}\"\n")
    page.wait(f"{LINES}.innerText.split({json.dumps(HOSTILE)}).length >= 3")
    press(page, "Escape")  # is the shell's
    assert page.evaluate("document.getElementById('drawer').open")
    type_text(page, "\nexit 3\n")
    page.wait(f"{NOTE} === 'The command has ended with exit code 3.'")
    assert focused(page) == "term-go"
    assert_unharmed(page, url)


def test_full_screens_come_and_go(node: Node, page: Page) -> None:
    sign_in(node, page)
    open_terminal(page)
    type_text(page, "seq 1 500\n")
    page.wait(f"/^500$/m.test({LINES}.innerText)")
    assert page.evaluate(f"/^17$/m.test({LINES}.innerText)")  # scrolled out, and kept
    type_text(page, "printf '\\033[?1049h\\033[2J\\033[3;5HALT'; sleep 2; printf '\\033[?1049l'\n")
    page.wait(f"{LINES}.innerText.trim() === 'ALT'")
    page.wait(f"/^500$/m.test({LINES}.innerText)")
    assert "ALT\n" not in page.evaluate(f"{LINES}.innerText.split('1049l').pop()")
    type_text(page, "seq 1 9000 | tail -n 8000\n")
    page.wait(f"/^9000$/m.test({LINES}.innerText)")
    assert page.evaluate(f"{LINES}.childElementCount") <= 2000 + 120


def test_closing_the_tab_ends_the_command(node: Node, page: Page) -> None:
    sign_in(node, page)
    open_terminal(page)
    type_text(page, "echo me=$$\n")
    page.wait(f"/^me=\\d+$/m.test({LINES}.innerText)")
    pid = page.evaluate(f"{LINES}.innerText.match(/^me=(\\d+)$/m)[1]")
    assert os.path.exists(f"/proc/{pid}")
    tab(page, "details")
    page.wait(f"!{LINES}")
    page.wait("1")
    deadline = "fetch('data').then(() => 0)"
    for _ in range(200):
        if not os.path.exists(f"/proc/{pid}"):
            break
        page.evaluate(deadline)
    assert not os.path.exists(f"/proc/{pid}")


def test_what_cannot_run_is_told(node: Node, page: Page) -> None:
    sign_in(node, page)
    page.wait(f"/CrashLoopBackOff/.test({row('crash')}?.innerText)")
    open_pod(page, "web")
    tab(page, "terminal")
    page.evaluate("document.getElementById('term-command').value = 'no-such-program'")
    page.evaluate("document.getElementById('term-go').click()")
    page.wait(f"/exit code 12[67]|could not run/.test({NOTE})")


def test_the_keyboard_suffices_for_a_terminal(node: Node, page: Page) -> None:
    url = sign_in(node, page)
    page.wait(row("web"))
    press(page, "/")
    type_text(page, "web")
    press(page, "Enter")
    press(page, "Enter")
    page.wait("document.getElementById('drawer').open")
    for _ in range(6):
        press(page, "Tab")
        if focused(page).startswith("tab-"):
            break
    press(page, "End")
    assert focused(page) == "tab-terminal"
    for _ in range(6):
        press(page, "Tab")
        if focused(page) == "term-command":
            break
    assert focused(page) == "term-command"
    press(page, "Enter")
    page.wait("document.activeElement.id === 'term-input'")
    type_text(page, "ec")
    press(page, "Tab")  # is the shell's
    assert focused(page) == "term-input"
    press(page, "Tab", shift=True)  # leaves it
    assert focused(page) != "term-input"
    press(page, "Escape")
    page.wait("!document.getElementById('drawer').open")
    assert_unharmed(page, url)


@pytest.mark.parametrize(("name", "width", "dark"), APPEARANCES)
def test_actions_fit_and_are_accessible(
    node: Node, page: Page, shots: Path, axe: str, name: str, width: int, dark: bool
) -> None:
    page.look_like(width=width, height=900, dark=dark)
    page.call("Page.setBypassCSP", enabled=True)  # for axe-core, which is given by the test
    _, url = node

    def check(state: str) -> None:
        page.screenshot(shots / f"{name}-{state}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, state
        assert page.evaluate(f"{PANEL}.scrollWidth <= {PANEL}.clientWidth + 1"), state
        assert findings(page, axe) == [], state

    page.open(url)
    page.wait(f"/CrashLoopBackOff/.test({row('crash')}?.innerText)")
    check("signed-out")
    page.open("about:blank")
    sign_in(node, page)
    page.wait(f"/CrashLoopBackOff/.test({row('crash')}?.innerText)")
    check("signed-in")
    open_pod(page, "web")
    page.wait(f"{PANEL}.querySelector('[aria-label=\"Restart main\"]')")
    check("details-owner")
    # By a key, as a user: dialogs that scripts open are closed together.
    page.evaluate(f"{PANEL}.querySelector('[aria-label=\"Restart main\"]').focus()")
    press(page, "Enter")
    page.wait("document.querySelector('dialog.confirm[open]')")
    check("confirm")
    press(page, "Escape")
    tab(page, "terminal")
    page.evaluate("document.getElementById('term-go').click()")
    page.wait("document.activeElement.id === 'term-input'")
    type_text(page, "ls --color=always -la / | head -n 12; ps | head -n 5\n")
    page.wait(f"/PID/.test({LINES}.innerText)")
    colour = "\\033[3${i}m f$i \\033[9${i}m F$i \\033[0;4${i}m b$i \\033[0;7;3${i}m r$i \\033[0m"
    type_text(page, f'for i in $(seq 0 7); do printf "{colour}"; done; echo end\n')
    page.wait(f"/^.*end$/m.test({LINES}.innerText.split('echo end').pop())")
    words = "\\033[1mbold\\033[0m \\033[4munderlined\\033[0m \\033[2mdim\\033[0m 日本語"
    exact = "\\033[38;5;208morange\\033[0m \\033[48;2;0;0;128mon navy\\033[0m\\n"
    type_text(page, f"printf '{words} {exact}'\n")
    page.wait(f"/^bold underlined/m.test({LINES}.innerText)")
    check("terminal")
    type_text(page, "exit 3\n")
    page.wait(f"{NOTE}.includes('exit code 3')")
    check("terminal-ended")


def end_insertion(page: Page) -> None:
    """Esc in vi, alone: with a key behind it, it would be that key's beginning.

    The status line must show the insertion first: what was there before it says what is waited for.
    """
    page.wait(f"/^I .*edited/m.test({LINES}.innerText)")
    press(page, "Escape")
    page.wait(f"/^- .*edited/m.test({LINES}.innerText)")


def test_an_editor_a_pager_and_top_work(node: Node, page: Page, shots: Path) -> None:
    """Those of busybox: they draw with the cursor's moves, regions, erasures and inverse text."""
    bed, _ = node
    file = bed.agent.base / "edited.txt"
    sign_in(node, page)
    open_terminal(page)
    type_text(page, f"clear; busybox vi {file}\n")
    page.wait(f"/^~$/m.test({LINES}.innerText)")
    type_text(page, "ihello from vi")
    press(page, "Enter")
    type_text(page, "second")
    page.wait(f"/^second$/m.test({LINES}.innerText)")
    end_insertion(page)
    press(page, "ArrowUp")
    type_text(page, "0xiH")
    page.wait(f"/^Hello from vi$/m.test({LINES}.innerText)")
    page.screenshot(shots / "terminal-vi.png")
    end_insertion(page)
    type_text(page, ":wq\n")
    page.wait(f"!/^~$/m.test({LINES}.innerText)")
    type_text(page, "seq 1 300 | busybox less\n")
    page.wait(f"/^1$/m.test({LINES}.innerText)")
    type_text(page, "G")
    page.wait(f"/^300$/m.test({LINES}.innerText)")
    type_text(page, "q")
    type_text(page, "busybox top -d 1\n")
    page.wait(f"/PID +PPID/.test({LINES}.innerText)")
    page.screenshot(shots / "terminal-top.png")
    ctrl(page, "c")
    type_text(page, "echo over-$((1+1))\n")
    page.wait(f"/over-2$/m.test({LINES}.innerText)")
    assert file.read_text() == "Hello from vi\nsecond\n"
