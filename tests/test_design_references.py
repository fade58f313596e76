"""What the source says of `docs/design/` is there: the page, and the heading."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
_REFERENCE = re.compile(r"docs/design/([a-z-]+\.md)(?:#([a-z0-9-]+))?")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def slugs_of(page: Path) -> set[str]:
    """As code hosts make anchors of headings."""
    headings = (
        re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", found) for found in _HEADING.findall(page.read_text())
    )
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def source_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [ROOT / name for name in listed if Path(name).suffix in {".py", ".sql"}]


def test_every_reference_to_the_design_leads_to_a_page_and_a_heading() -> None:
    references = [
        (file.relative_to(ROOT), page, slug)
        for file in source_files()
        for page, slug in _REFERENCE.findall(file.read_text())
    ]
    design = ROOT / "docs" / "design"
    known = {page.name: slugs_of(page) for page in design.glob("*.md")}

    assert len(references) > 80
    assert [
        f"{file}: {page}#{slug}"
        for file, page, slug in references
        if page not in known or (slug and slug not in known[page])
    ] == []


def test_the_source_refers_to_no_page_that_a_reader_does_not_have() -> None:
    private = "DESIGN" + " §"
    assert [str(file.relative_to(ROOT)) for file in source_files() if private in file.read_text()] == []
