"""What a page says a command prints is compared with what it prints, and nothing else passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.transcript import Terminal, blocks_of, follow, is_printed

TABLE = "NAME    READY   RESTARTS     AGE\nweb-a   1/1     1 (4s ago)   6s"


@pytest.mark.parametrize(
    ("page", "printed", "same"),
    [
        (TABLE, "NAME   READY   RESTARTS       AGE\nweb-a  1/1     2 (1m4s ago)   1m12s\n", True),
        (TABLE, "NAME   READY   RESTARTS       AGE\nweb-a  0/1     2 (1m4s ago)   1m12s\n", False),
        (TABLE, "NAME   READY   RESTARTS       AGE\nweb-a  1/1     0              1m12s\n", False),
        ("a\n...\nb", "a\nb", True),
        ("a\n...\nb", "a\nx\ny\nb", True),
        ("a\n...\nb", "a\nx\n", False),
        ("at ...: ok", "at unix:///run/x.sock: ok", True),
        ("at ...: ok", "at unix:///run/x.sock: no", False),
        ("web@2a13374357218f7c", "web@dc9474f83d559eb2", True),
        ("exit code 3", "exit code 4", False),
        ("hello", "", False),
        ("used 12Mi, 3%", "used 9.5Gi, 41%", True),
        ("no [brackets] (or) dots.", "no [brackets] (or) dots!", False),
    ],
)
def test_only_what_may_be_another_is(page: str, printed: str, same: bool) -> None:
    assert is_printed(page, printed) is same


def test_blocks_are_followed_in_order_in_one_terminal(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```yaml\n# a.yaml\nkind: Pod\n```\n```text\nnot this\n```\n"
        "```sh\ncd ..; here=kept\n```\n```console\n$ echo $here; false\nkept\n$ cat t/a.yaml\n"
        "# a.yaml\n...\n```\n"
    )
    (tmp_path / "t").mkdir()
    terminal = Terminal(["sh", "-e"], directory=tmp_path / "t")
    try:
        for block in blocks_of(page):
            follow(block, terminal.run, lambda name, text: (tmp_path / "t" / name).write_text(text))
    finally:
        terminal.close()


def test_a_command_that_fails_ends_the_reading() -> None:
    terminal = Terminal(["sh", "-e"])
    try:
        with pytest.raises(AssertionError, match=r"did not go on to its end(.|\n)*so far"):
            terminal.run("echo so far; false\necho never")
    finally:
        terminal.close()
