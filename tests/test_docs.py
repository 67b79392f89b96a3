"""Every page of docs/ is in its index, every link resolves, and CONTRIBUTING.md shows real code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "tests/README.md", ROOT / "bench/README.md"]
)

_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_SHOWN = re.compile(r"^\| `(?P<file>[\w/]+\.py)` \| `(?P<code>.+)` \|$", re.MULTILINE)
_NAMED = re.compile(r"`((?:kubelet_trio|tests|scripts)/[\w/.-]+\w)`")


def links(page: Path) -> list[str]:
    """Return the targets of a page's links, those in code left out."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return _LINK.findall(re.sub(r"`[^`\n]*`", "x", text))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"


def test_the_index_has_every_page_once() -> None:
    index = DOCS / "README.md"
    listed = [(DOCS / link).resolve() for link in links(index)]
    assert len(listed) == len(set(listed))
    assert {page for page in PAGES if DOCS in page.parents} - {index} <= set(listed)


def test_what_contributing_shows_of_a_file_is_in_it() -> None:
    shown = _SHOWN.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(shown) > 15
    for file, code in shown:
        assert code in (ROOT / file).read_text(), f"{file} has no {code}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "tests/README.md"])
def test_every_file_that_is_named_exists(page: str) -> None:
    for name in _NAMED.findall((ROOT / page).read_text()):
        assert (ROOT / name).exists(), f"{page} names {name}"
