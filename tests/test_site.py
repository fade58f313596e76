"""The pages of the repository, and the site built from them, have no dead link and fetch nothing from
elsewhere.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from docs.site_hook import in_repository, in_site, with_plain_lists
from tests.test_tidy import ROOT, tracked

FENCE = re.compile(r"^\s*(```|~~~).*?^\s*\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)|(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\bhref=\"?(?:https?:)?//"
)


@cache
def headings(page: Path) -> frozenset[str]:
    """The anchors that a code host gives to a page's headings."""
    anchors: list[str] = []
    seen: Counter[str] = Counter()
    for heading in HEADING.findall(FENCE.sub("", page.read_text())):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        anchors.append(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(anchors)


def is_dead(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return False  # out of the repository
    target, _, heading = link.partition("#")
    file = page.parent / unquote(target) if target else page
    if not file.exists():
        return True
    return bool(heading) and (file.suffix != ".md" or heading not in headings(file))


def test_every_link_between_pages_leads_to_a_file_and_a_heading() -> None:
    links = [
        (page, one or other)
        for page in tracked("*.md")
        for one, other in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text())))
    ]

    assert [f"{page.relative_to(ROOT)} -> {link}" for page, link in links if is_dead(page, link)] == []
    assert len(links) > 200


def test_lists_are_written_as_the_sites_parser_wants_them() -> None:
    page = """Text:
- one
  goes on
  1. inner
     ```
     - code
     ```
- two

After 1999 or
2026. no list
* list
"""

    assert (
        with_plain_lists(page)
        == """Text:

- one
    goes on
    1. inner
        ```
        - code
        ```
- two

After 1999 or
2026. no list

* list
"""
    )


def test_lists_that_are_fine_stay_as_they_are() -> None:
    page = "# Title\n\n- one\n- two\n\nText\n\n    code\n\n```\ntext\n- no list\n```\n"

    assert with_plain_lists(page) == page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does; a warning of mkdocs fails the build."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert built.returncode == 0, built.stderr
    return folder


def html_of(page: str) -> str:
    return re.sub(r"(^|/)README\.md$", r"\1index.html", in_site(page)).replace(".md", ".html")


def test_every_page_of_the_repository_is_in_the_site(site: Path) -> None:
    pages = [page.relative_to(ROOT).as_posix() for page in tracked("*.md")]

    assert [page for page in pages if not (site / html_of(page)).is_file()] == []
    assert [page for page in pages if in_repository(in_site(page)) != page] == []


def test_every_link_of_the_site_leads_to_a_file_and_an_anchor(site: Path) -> None:
    pages = {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    anchors = {page: set(re.findall(r"\bid=\"?([^\"\s>]+)", text)) for page, text in pages.items()}
    dead = set()
    for page, text in pages.items():
        for link in set(re.findall(r"\b(?:href|src)=\"?([^\"\s>]+)", text)):
            target, _, anchor = link.partition("#")
            file = (page.parent / unquote(target)).resolve() if target else page
            if re.match(r"[a-z]+:", link):
                continue
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file() or (anchor and unquote(anchor) not in anchors.get(file, ())):
                dead.add(f"{page.relative_to(site)} -> {link}")

    assert sorted(dead) == []


def test_a_source_file_that_a_page_links_to_is_named_in_the_site(site: Path) -> None:
    page = (site / html_of("examples/README.md")).read_text()

    assert "consumer_group.py" in page
    assert 'href="consumer_group.py"' not in page


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    """Mermaid's script as well: the theme fetches it if a page has a diagram and the site has no script."""
    pages = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}

    assert [page for page, text in pages.items() if FETCHED.search(text)] == []
    assert [
        page for page, text in pages.items() if 'class="mermaid"' in text and "/mermaid.min.js" not in text
    ] == []
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert re.findall(r"(?:@import\s+|url\()[\"']?(?:https?:)?//[^)]*", styles) == []
    pictures = {picture.name: picture.read_text() for picture in site.rglob("*.svg")}
    assert [name for name, text in pictures.items() if re.search(r"(?:url\(|href=)[\"']?https?:", text)] == []
