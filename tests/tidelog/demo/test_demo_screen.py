"""The demonstration's screen, without a demonstration."""

import io
import re
from pathlib import Path

from rich.console import Console

from tidelog.demo.screen import Screen


def test_the_picture_shows_what_was_printed_and_fetches_nothing(tmp_path: Path) -> None:
    printed = io.StringIO()
    screen = Screen(Console(file=printed, width=60))
    with screen.step(1, "Start") as step:
        step.detail = "two agents"
    screen.check("count", False, "3 missing")
    screen.show_result({"records": "7"}, {"AA": 1.5}, {"AA": 1.5}, seconds=9.0)

    screen.save_picture(tmp_path / "demo.svg")

    picture = (tmp_path / "demo.svg").read_text()
    words = re.sub(r"<[^>]+>|&#160;", " ", picture)
    for word in ("Start", "agents", "missing", "records", "FAILED", "1.500"):
        assert word in words
        assert word in printed.getvalue()
    assert "url(http" not in picture
    assert "@font-face" not in picture
