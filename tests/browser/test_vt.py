"""The terminal's parts that show nothing, by tables: output to rows, keys and words to text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.browser.chromium import Page
from tests.browser.test_node_page import Node

E = "\x1b"
C = "\x1b["
# Output to a screen of 10 columns and 4 rows -> its rows without the blanks at their ends, and the
# cursor's column and row.
SCREENS: dict[str, tuple[str, str, tuple[int, int]]] = {
    "lines": ("ab\r\ncd", "ab|cd||", (2, 1)),
    "wrap": ("0123456789ab", "0123456789|ab||", (2, 1)),
    "the last column waits": ("0123456789\r\nx", "0123456789|x||", (1, 1)),
    "no wrap": (f"{C}?7l0123456789ab", "012345678b|||", (9, 0)),
    "backspace": ("abc\b\bX", "aXc|||", (2, 0)),
    "tabs": ("a\tb", "a       b|||", (9, 0)),
    "tabs set and cleared": (f"{C}3g{C}4G{E}H\r\tx", "   x|||", (4, 0)),
    "a tab back": (f"abc{C}Zx", "xbc|||", (1, 0)),
    "scrolling": ("1\n\r2\n\r3\n\r4\n\r5", "2|3|4|5", (1, 3)),
    "moves": (f"{C}2;3Hx{C}Ay{C}2Bz{C}3Dw", "   y|  x|  w z|", (3, 2)),
    "moves stop at the edges": (f"{C}99;99Hx{C}99A{C}99Dy", "y|||         x", (1, 0)),
    "columns and rows": (f"{C}4Gx{C}3dy", "   x||    y|", (5, 2)),
    "next and previous line": (f"ab{C}2Ex{C}Fy", "ab|y|x|", (1, 1)),
    "erase to the end": (f"abcdef{C}4G{C}K", "abc|||", (3, 0)),
    "erase from the start": (f"abcdef{C}4G{C}1K", "    ef|||", (3, 0)),
    "erase the line": (f"abcdef{C}2K", "|||", (6, 0)),
    "erase below": (f"a\r\nb\r\nc{C}2;1H{C}J", "a|||", (0, 1)),
    "erase above": (f"a\r\nb\r\nc{C}2;1H{C}1J", "||c|", (0, 1)),
    "erase all": (f"a\r\nb{C}2Jx", "| x||", (2, 1)),
    "erase characters": (f"abcdef{C}2G{C}2X", "a  def|||", (1, 0)),
    "delete characters": (f"abcdef{C}2G{C}2P", "adef|||", (1, 0)),
    "insert characters": (f"abcdef{C}2G{C}2@", "a  bcdef|||", (1, 0)),
    "insert mode": (f"abc{C}2G{C}4hXY{C}4lZ", "aXYZc|||", (4, 0)),
    "insert lines": (f"1\r\n2\r\n3\r\n4{C}2H{C}L", "1||2|3", (0, 1)),
    "delete lines": (f"1\r\n2\r\n3\r\n4{C}2H{C}M", "1|3|4|", (0, 1)),
    "repeat": (f"ab{C}3b", "abbbb|||", (5, 0)),
    "a region": (f"1\r\n2\r\n3\r\n4{C}2;3r{C}3H\nx", "1|3|x|4", (1, 2)),
    "up in a region": (f"1\r\n2\r\n3\r\n4{C}2;3r{C}2H{E}Mx", "1|x|2|4", (1, 1)),
    "origin": (f"{C}2;3r{C}?6h{C}Hx{C}9Hy", "|x|y|", (1, 2)),
    "a region of one line is none": (f"{C}2;2rx\n\n\n\n", "|||", (1, 3)),
    "scroll up and down": (f"1\r\n2\r\n3\r\n4{C}2S{C}T", "|3|4|", (1, 3)),
    "index and next line": (f"ab{E}Dc{E}Ed", "ab|  c|d|", (1, 2)),
    "saved and restored": (f"ab{E}7\r\ncd{E}8X", "abX|cd||", (3, 0)),
    "saved by CSI": (f"ab{C}s\r\ncd{C}uX", "abX|cd||", (3, 0)),
    "the other screen": (f"ab{C}?1049hxyz{C}2Jq{C}?1049l!", "ab!|||", (3, 0)),
    "the other screen begins empty": (f"ab{C}?1049h{C}Hx", "x|||", (1, 0)),
    "line drawing": (f"{E}(0lqk{E}(Bq", "┌─┐q|||", (4, 0)),
    "line drawing by shifts": (f"{E})0\x0eq\x0fq", "─q|||", (2, 0)),
    "UTF-8": ("äß€", "äß€|||", (3, 0)),
    "wide": ("日本x", "日本x|||", (5, 0)),
    "wide at the edge": ("012345678日", "012345678|日||", (2, 1)),
    "half of a wide one": (f"日本{C}2Gx", " x本|||", (2, 0)),
    "marks": ("e\u0301x", "e\u0301x|||", (2, 0)),
    "marks on nothing": ("\u0301x", "x|||", (1, 0)),
    "text is not turned": ("a\u202eb\u2066c", "abc|||", (3, 0)),
    "C1 is nothing": ("a\x9bb\x85c\x90d", "abcd|||", (4, 0)),
    "a title": (f"a{E}]0;title\x07b{E}]2;t{E}\\c", "abc|||", (3, 0)),
    "strings": (f"a{E}P1$r0m{E}\\b{E}_x{E}\\c", "abc|||", (3, 0)),
    "a string that is broken off": (f"a{E}]0;t\x18b", "ab|||", (2, 0)),
    "a sequence within a string ends it": (f"a{E}]0;t{C}2Gb", "ab|||", (2, 0)),
    "a sequence that is broken off": (f"a{C}2\x18b", "ab|||", (2, 0)),
    "controls within a sequence": (f"ab{C}\r1Cc", "ac|||", (2, 0)),
    "unknown ones": (f"a{C}99zb{C}?9999hc{C}>4;2md{E}%Ge{C}1$qf", "abcdef|||", (6, 0)),
    "colours take no place": (f"{C}1;38;5;208ma{C}38:2::1:2:3mb{C}0mc", "abc|||", (3, 0)),
    "a reset": (f"abc{C}?1049hx{C}2;3r{E}cd", "d|||", (1, 0)),
    "a test pattern": (f"{E}#8", "EEEEEEEEEE|EEEEEEEEEE|EEEEEEEEEE|EEEEEEEEEE", (0, 0)),
}
STYLES: dict[str, dict[str, Any]] = {
    "31": {"fg": 1},
    "1;31;44": {"bold": True, "fg": 1, "bg": 4},
    "97;107": {"fg": 15, "bg": 15},
    "38;5;9": {"fg": 9},
    "38;5;16": {"fg": [0, 0, 0]},
    "38;5;231": {"fg": [255, 255, 255]},
    "38;5;208;1": {"fg": [255, 135, 0], "bold": True},
    "48;5;244": {"bg": [128, 128, 128]},
    "38;5;999": {},
    "38;2;1;2;300;4": {"fg": [1, 2, 255], "underline": True},
    "38:2::1:2:3": {"fg": [1, 2, 3]},
    "38:5:208": {"fg": [255, 135, 0]},
    "38": {},
    "4:3": {"underline": True},
    "4;4:0": {},
    "7;3;2;9;8": dict.fromkeys(("inverse", "italic", "dim", "strike", "hidden"), True),
    "1;31;0": {},
    "1;22;31;39;41;49": {},
    "": {},
    ";;1": {"bold": True},
}
ANSWERS = {
    f"ab{C}6n": f"{C}1;3R",
    f"{C}5n": f"{C}0n",
    f"{C}c": f"{C}?1;2c",
    f"{C}>c": f"{C}>0;0;0c",
    f"{E}P$q m{E}\\{C}21t": "",  # none that repeats what was written
    f"{C}6n" * 1000: f"{C}1;1R" * 16,
}
KEYS: list[tuple[dict[str, Any], str | None]] = [
    ({"key": "a"}, None),  # comes as input
    ({"key": "Enter"}, "\r"),
    ({"key": "Backspace"}, "\x7f"),
    ({"key": "Tab"}, "\t"),
    ({"key": "Tab", "shiftKey": True}, None),
    ({"key": "Escape"}, E),
    ({"key": "c", "ctrlKey": True}, "\x03"),
    ({"key": "C", "ctrlKey": True, "shiftKey": True}, None),
    ({"key": "[", "ctrlKey": True}, E),
    ({"key": " ", "ctrlKey": True}, "\0"),
    ({"key": "_", "ctrlKey": True}, "\x1f"),
    ({"key": "x", "altKey": True}, f"{E}x"),
    ({"key": "@", "ctrlKey": True, "altKey": True, "isAltGraph": True}, None),
    ({"key": "v", "metaKey": True}, None),
    ({"key": "ArrowUp"}, f"{C}A"),
    ({"key": "ArrowLeft", "ctrlKey": True}, f"{C}1;5D"),
    ({"key": "Home"}, f"{C}H"),
    ({"key": "Delete"}, f"{C}3~"),
    ({"key": "PageDown", "shiftKey": True}, f"{C}6;2~"),
    ({"key": "F1"}, f"{E}OP"),
    ({"key": "F5"}, f"{C}15~"),
    ({"key": "Shift"}, None),
    ({"key": "Dead"}, None),
]
WORDS = {
    "sh": ["sh"],
    "  sh   -c 'echo  a' ": ["sh", "-c", "echo  a"],
    'a "b \\" c" d\\ e': ["a", 'b " c', "d e"],
    "a'b'\"c\"d": ["abcd"],
    "''": [""],
    "": [],
}
PRELUDE = "const { Screen } = await import('/ui/vt.js');"


@pytest.fixture
def run(node: Node, page: Page) -> Any:
    """Return what runs JavaScript on the page, whose modules it may import."""
    _, url = node
    page.open(url)
    page.wait("document.body?.dataset.looks")

    def evaluate(body: str) -> Any:
        return page.evaluate(f"(async () => {{ {PRELUDE} {body} }})()")

    return evaluate


def js(value: object) -> str:
    return json.dumps(value)


def test_what_a_program_writes_is_where_it_wrote_it(run: Any) -> None:
    told = run(
        f"return {js([output for output, *_ in SCREENS.values()])}.map((output) => {{"
        "const s = new Screen(10, 4); s.write(new TextEncoder().encode(output));"
        "return [s.lines.map((r) => r.text.join('').trimEnd()).join('|'), [s.x, s.y]]; });"
    )
    wanted = {name: [rows, list(at)] for name, (_, rows, at) in SCREENS.items()}
    assert dict(zip(SCREENS, told, strict=True)) == wanted


def test_it_is_the_same_in_pieces(run: Any) -> None:
    different = run(
        f"return {js([output for output, *_ in SCREENS.values()])}.filter((output) => {{"
        "const a = new Screen(10, 4), b = new Screen(10, 4);"
        "const bytes = new TextEncoder().encode(output); a.write(bytes);"
        "for (const byte of bytes) b.write(Uint8Array.of(byte));"
        "return JSON.stringify(a.lines) !== JSON.stringify(b.lines); });"
    )
    # A row's version counts its changes, which are the same.
    assert different == []


def test_colours_and_renditions(run: Any) -> None:
    told = run(
        "const { PLAIN } = await import('/ui/vt.js');"
        f"return {js(list(STYLES))}.map((numbers) => {{ const s = new Screen(10, 4);"
        "s.write(new TextEncoder().encode(`\\x1b[${numbers}mx`));"
        "return Object.fromEntries(Object.entries(s.lines[0].styles[0]).filter("
        "([name, value]) => value !== PLAIN[name])); });"
    )
    assert dict(zip(STYLES, told, strict=True)) == STYLES


def test_answers_are_few_and_are_no_echo(run: Any) -> None:
    told = run(
        f"return {js(list(ANSWERS))}.map((output) => new Screen(10, 4).write("
        "new TextEncoder().encode(output)));"
    )
    assert dict(zip(ANSWERS, told, strict=True)) == ANSWERS


def test_what_is_kept_is_bounded(run: Any) -> None:
    told = run(
        "const s = new Screen(10, 4); const write = (t) => s.write(new TextEncoder().encode(t));"
        "for (let n = 0; n < 100; n += 1) write('x\\r\\n'.repeat(100));"
        "const kept = s.history.length;"
        "write('\\x1b[' + '1;'.repeat(100000)); const csi = s.sequence.length; write('m\\x1b]0;');"
        "for (let n = 0; n < 100; n += 1) write('t'.repeat(10000));"
        "const osc = s.sequence.length; write('\\x07a' + '\\u0301'.repeat(100000));"
        "const cell = Math.max(...s.lines.flatMap((r) => r.text.map((t) => t.length)));"
        "write('\\x1b[?1049h' + 'y\\r\\n'.repeat(100)); const other = s.history.length;"
        "write('\\x1b[99999999999999999999A\\x1b[3J'); return [kept, csi, osc, cell, other, s.y];"
    )
    assert told == [2000, 96, 1, 8, 2000, 0]


def test_a_flood_of_large_counts_takes_no_long_time(run: Any) -> None:
    seconds = run(
        "const s = new Screen(300, 120); const began = performance.now();"
        "const piece = '\\x1b[9999b\\x1b[9999S\\x1b[9999I\\x1b[9999L';"
        "const bytes = new TextEncoder().encode('a' + piece.repeat(1500));"
        "s.write(bytes); return (performance.now() - began) / 1000;"
    )
    assert seconds < 30  # of 64 KiB, on a loaded machine; usually 2


def test_a_screen_that_changes_its_size_keeps_what_is_on_it(run: Any) -> None:
    told = run(
        "const s = new Screen(10, 4); const write = (t) => s.write(new TextEncoder().encode(t));"
        "const rows = () => s.lines.map((r) => r.runs().map(([t]) => t).join('')).join('|');"
        "write('1\\r\\n2\\r\\n3\\r\\n0123456789'); const found = [];"
        "for (const size of [[5, 2], [5, 1], [10, 4], [20, 6]]) {"
        "s.resize(...size); found.push(rows(), s.y); }"
        "write('\\x1b[?1049hx'); s.resize(4, 2); s.resize(10, 4); write('\\x1b[?1049l');"
        "found.push(rows());"
        "return found;"
    )
    assert told[:8] == ["3|01234", 1, "01234", 0, "1|2|3|0123456789", 3, "1|2|3|0123456789||", 3]
    assert told[8] == "1|2|3|0123456789"


def test_keys_send_what_those_of_xterm_send(run: Any) -> None:
    told = run(
        "const { keyText } = await import('/ui/keys.js');"
        f"return {js([key for key, _ in KEYS])}.map((event) => keyText(event));"
    )
    assert list(zip((key for key, _ in KEYS), told, strict=True)) == KEYS
    assert run(
        "const { keyText } = await import('/ui/keys.js');"
        "const up = { key: 'ArrowUp' };"
        "return [keyText(up, true), keyText({ ...up, shiftKey: true }, true)];"
    ) == [f"{E}OA", f"{C}1;2A"]


def test_pasted_text_cannot_end_its_brackets(run: Any) -> None:
    told = run(
        "const { pastedText } = await import('/ui/keys.js');"
        "return [['a\\nb\\r\\nc', false], ['a\\x1b[201~b\\x1b[2\\x1b[201~01~c\\x03', true]]"
        ".map((given) => pastedText(...given));"
    )
    assert told == ["a\rb\rc", f"{C}200~abc{C}201~"]


def test_a_command_line_is_divided_as_by_a_shell(run: Any) -> None:
    told = run(
        "const { wordsOf } = await import('/ui/terminal.js');"
        f"return {js(list(WORDS))}.map(wordsOf);"
    )
    assert dict(zip(WORDS, told, strict=True)) == WORDS
