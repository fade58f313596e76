"""One of several processes makes a target, completely, and another makes it after a failure."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.once import made_once


def test_of_many_at_once_one_makes_it_and_all_get_it_whole(tmp_path: Path) -> None:
    target, makers, all_ask = tmp_path / "made" / "target", [], threading.Barrier(8)

    def make(building: Path) -> None:
        makers.append(building)
        building.mkdir()
        (building / "first").touch()
        time.sleep(0.05)  # the others come meanwhile
        (building / "last").touch()

    def ask(_: int) -> set[str]:
        all_ask.wait(10)
        return {path.name for path in made_once(target, make).iterdir()}

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))

    assert found == [{"first", "last"}] * 8
    assert len(makers) == 1


def test_what_a_failure_left_is_not_taken_for_the_target(tmp_path: Path) -> None:
    target = tmp_path / "target"

    def fail(building: Path) -> None:
        building.mkdir()
        (building / "half").touch()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        made_once(target, fail)

    assert not target.exists()
    made_once(target, Path.mkdir)
    assert list(target.iterdir()) == []
