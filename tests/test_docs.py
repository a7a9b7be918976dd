"""The pages of docs/ are in its index, and links between pages lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def links(page: Path) -> list[Path]:
    """The files that a page links to; addresses are none."""
    found = LINK.findall(page.read_text())
    return [page.parent / link for link in found if "://" not in link]


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs/README.md"
    named = {path.resolve() for path in links(index)}
    assert {path for path in (ROOT / "docs").glob("*.md") if path != index} - named == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    assert [str(link) for link in links(page) if not link.exists()] == []
