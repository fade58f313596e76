"""The hook of the documentation's site (mkdocs.yml): pages of the repository that are not in docs/.

- README.md is the site's first page. The other pages of `OUTSIDE` keep their path in the repository.
- A link to a page or picture of the site stays a link. A link to a source file becomes its path in plain
  text, because the site does not have the file. So each page has the links that work on a code host.
- Lists are read as code hosts read them (CommonMark): without an empty line before them, nested by two or
  three spaces.
- A folder in the navigation becomes its pages, in the order in which its README.md links to them.
- Diagrams are drawn if mermaid's script is in .cache/ (`make docs` puts it there). The site has a copy of the
  script, and fetches nothing.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = (
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE",
    "examples/README.md",
    "benchmarks/*.md", "benchmarks/simulation/*.md", "benchmarks/plots/*.svg",
)  # fmt: skip
MERMAID: Final = ROOT / ".cache" / "mermaid.min.js"
_MERMAID_IN_SITE: Final = "assets/mermaid.min.js"
_FENCE: Final = re.compile(r"^(\s*(?:```|~~~).*?^\s*(?:```|~~~)\s*?$)", re.MULTILINE | re.DOTALL)
_FENCE_MARK: Final = re.compile(r"\s*(```|~~~)")
_ITEM: Final = re.compile(r"( *)([-*+]|\d+[.)])( +)\S")
_LINK: Final = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")


def in_site(path: str) -> str:
    """Where the site has a file of the repository; both paths are relative to their roots."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def in_repository(path: str) -> str:
    """The file of the repository from which a page of the site comes: the other way round."""
    if path == "index.md":
        return "README.md"
    return path if (ROOT / path).is_file() and not (ROOT / "docs" / path).is_file() else f"docs/{path}"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have diagrams drawn if there is something to draw them with; without it, a reader sees their text."""
    if MERMAID.is_file():
        from pymdownx.superfences import fence_code_format

        fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
        fences["custom_fences"] = [{"name": "mermaid", "class": "mermaid", "format": fence_code_format}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures outside docs/, and write folders of the navigation out."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            place = in_site(path.relative_to(ROOT).as_posix())
            files.append(File.generated(config, place, abs_src_path=str(path)))
    if MERMAID.is_file():
        files.append(File.generated(config, _MERMAID_IN_SITE, abs_src_path=str(MERMAID)))
    config.nav = list(_written_out(config.nav or [], files))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Point links at the site's own pages, and write a source file's path out."""
    here = in_repository(page.file.src_uri)
    parts = _FENCE.split(markdown)
    linked = [
        part if _FENCE_MARK.match(part) else _LINK.sub(lambda link: _link(link, here, files), part)
        for part in parts
    ]
    return with_plain_lists("".join(linked))


def with_plain_lists(markdown: str) -> str:
    """The same text with an empty line before each list, and four spaces for each level of it."""
    lines: list[str] = [""]
    columns: list[int] = []  # where the text of each open item begins, the outermost first
    is_in_list, fence = False, ""
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        mark = _FENCE_MARK.match(line)
        item = None if fence or mark else _item(line, may_begin=is_in_list or not lines[-1].strip())
        if line.strip() and not fence:
            while columns and indent < columns[-1]:
                columns.pop()
            if item and not is_in_list and lines[-1].strip():
                lines.append("")
            is_text_of_item = is_in_list and bool(lines[-1].strip()) and not line.startswith("#")
            is_in_list = bool(item or columns) or is_text_of_item
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        column = columns[-1] if columns else 0
        lines.append(" " * 4 * len(columns) + line[min(column, indent) :] if line.strip() else "")
        if item:
            columns.append(item.end() - 1)
    return "\n".join(lines[1:]) + "\n"


def _item(line: str, *, may_begin: bool) -> re.Match[str] | None:
    """The marker of a list's item. Within a paragraph a number begins a list only if it is 1."""
    item = _ITEM.match(line)
    return item if item and (may_begin or item[2] in ("-", "*", "+", "1.", "1)")) else None


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Give a page with diagrams the script that draws them."""
    if 'class="mermaid"' not in output:
        return output
    script = posixpath.relpath(_MERMAID_IN_SITE, posixpath.dirname(page.file.dest_uri))
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)


def _link(link: re.Match[str], here: str, files: Files) -> str:
    target, mark, heading = link["target"].partition("#")
    if not target or ":" in target:
        return link[0]  # to a heading of this page, or out of the repository
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    if (ROOT / path).is_dir() and files.get_file_from_path(in_site(f"{path}/README.md")):
        path = f"{path}/README.md"
    if files.get_file_from_path(in_site(path)):
        start = posixpath.dirname(in_site(here))
        target = posixpath.relpath(in_site(path), start or ".")
        return f"{link['picture']}[{link['text']}]({target}{mark}{heading})"
    if not (ROOT / path).exists():
        return link[0]  # mkdocs names the page that has it
    text = link["text"]
    return text if Path(target).name in text else f"{text} (`{path}`)"


def _written_out(entries: list[Any], files: Files) -> Iterator[Any]:
    for entry in entries:
        if not isinstance(entry, dict):
            yield entry
            continue
        for title, value in entry.items():
            if isinstance(value, list):
                yield {title: list(_written_out(value, files))}
            elif not value.endswith("/"):
                yield {title: value}
            elif pages := _pages_of(value, files):
                yield {title: pages}


def _pages_of(folder: str, files: Files) -> list[str]:
    found = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri.startswith(folder))
    first = f"{folder}README.md"
    text = (ROOT / "docs" / first).read_text() if first in found else ""
    places = {page: text.find(f"]({page.removeprefix(folder)}") for page in found}
    return sorted(found, key=lambda page: (page != first, places[page] < 0, places[page]))
