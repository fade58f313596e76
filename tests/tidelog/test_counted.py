"""Numbers of things."""

import pytest

from tidelog.output import counted


@pytest.mark.parametrize(("number", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1_000, "1,000 rows")])
def test_one_thing_is_not_many(number: int, said: str) -> None:
    assert counted(number, "row") == said
