"""How often the text of `/metrics` is made, by how long that takes."""

import pytest

from agent.http.metrics_text import MetricsText


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("takes_s", "most"), [(0.05, 200), (0.5, 20), (5.0, 2)], ids=["short", "long", "longest"]
)
def test_a_text_that_takes_long_takes_a_tenth_of_the_time(takes_s: float, most: int) -> None:
    clock, made = Clock(), 0

    def make() -> bytes:
        nonlocal made
        clock.now_s += takes_s
        made += 1
        return b"%d" % made

    text = MetricsText(make, clock, clock)
    while clock.now_s < 200.0:
        found = text.kept() or text.new()
        assert found == b"%d" % made, "the last one"
        clock.now_s += 0.001

    assert made * takes_s == pytest.approx(10.0, rel=0.05)
    assert made <= most + 1


def test_a_text_that_is_made_quickly_is_always_new() -> None:
    clock = Clock()
    text = MetricsText(lambda: b"text", clock, clock)

    assert text.new() == b"text"
    assert text.kept() is None


def test_time_in_which_others_had_the_processor_does_not_count() -> None:
    clock, cpu_clock = Clock(), Clock()

    def make() -> bytes:
        clock.now_s += 5.0
        cpu_clock.now_s += 0.01
        return b"text"

    text = MetricsText(make, clock, cpu_clock)

    assert text.new() == b"text"
    assert text.kept() is None
