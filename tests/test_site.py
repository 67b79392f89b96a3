"""The documentation as a site: every link and anchor holds, and it loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//|"
    r"<link[^>]*rel=\"?(?:stylesheet|preconnect|preload)[^>]*href=\"?(?:https?:)?//",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [str(ROOT / "scripts/build-docs"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if _LOADED.search(page.read_text())] == []
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert not any(re.search(r"@import|url\(\"?(?:https?:)?//", style) for style in styles)


def test_the_search_index_is_in_the_site(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    found = [one["location"] for one in index["docs"] if "podPidsLimit" in one["text"]]
    assert any(location.startswith("docs/resources.html") for location in found)


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    for name in ("docs", "examples", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    pages = ["tests/README.md", "bench/README.md", "mkdocs.yml", "LICENSE"]
    for page in [*pages, *(path.name for path in ROOT.glob("*.md"))]:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    with (tmp_path / "docs/stats.md").open("a") as page_file:
        page_file.write("\n[a](resources.md#no-such-heading) [b](no-such-page.md)\n")
    command = [str(tmp_path / "scripts/build-docs"), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "#no-such-heading" in done.stderr
    assert "no-such-page.md" in done.stderr


def test_external_links_are_addresses() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\((\w+:[^)\s]*)\)", page.read_text()):
            assert re.fullmatch(r"https://[\w.-]+\.\w+(/[^\s<>\"]*)?", link), f"{page.name}: {link}"
