"""Windows of producers: which has sent all that it ever sends, and which to wait for."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.write_path.producer_window import OpenWindows, ProducerWindow, WindowPolicy

POLICY = WindowPolicy(refill_s=0.02, refill_wait_s=0.004)


class Producer:
    """A connection that sends `width` requests, and as many again once all are answered."""

    def __init__(self, windows: OpenWindows, width: int = 5, refill_s: float = 0.001) -> None:
        self.windows, self.width, self.refill_s = windows, width, refill_s
        self.window = ProducerWindow()

    def send(self, now_s: float) -> None:
        self.windows.took(self.window, 1, 16_384, now_s)

    def fill(self, now_s: float) -> None:
        for _ in range(self.width - self.window.in_flight):
            self.send(now_s + self.refill_s)

    def answered(self, now_s: float) -> None:
        for _ in range(self.window.in_flight):
            self.windows.answered(self.window, now_s - 0.1, now_s)


def after_cycles(producers: Sequence[Producer], cycles: int = 5) -> float:
    """All cycles in step, sealed together. The open segment is empty and all were just answered. Returns the
    time.
    """
    now_s = 0.0
    for _ in range(cycles):
        for producer in producers:
            producer.fill(now_s)
        now_s += 0.1
        producers[0].windows.sealed(is_rest_empty=True)
        for producer in producers:
            producer.answered(now_s)
    return now_s


def some_windows() -> OpenWindows:
    return OpenWindows(POLICY)


def test_waiting_brings_nothing_once_a_limited_producer_has_sent_its_window() -> None:
    windows = some_windows()
    producer = Producer(windows)
    now_s = after_cycles([producer])

    for number in range(1, 6):
        assert windows.full_at_s(now_s) is None, number
        producer.send(now_s)

    assert windows.full_at_s(now_s) == now_s


def test_a_producer_that_fills_its_window_slowly_is_not_limited_by_it() -> None:
    windows = some_windows()
    producer = Producer(windows, refill_s=0.06)
    now_s = after_cycles([producer], 20)
    producer.fill(now_s)

    assert not producer.window.is_limited
    assert windows.full_at_s(now_s + 1) is None


def test_a_producer_with_room_in_its_window_is_waited_for() -> None:
    windows = some_windows()
    first, second = Producer(windows), Producer(windows)
    now_s = after_cycles([first, second])

    first.fill(now_s)
    second.send(now_s)
    assert windows.full_at_s(now_s) is None
    second.fill(now_s)

    assert windows.full_at_s(now_s) == now_s


def test_a_producer_that_was_just_answered_is_waited_for_a_moment() -> None:
    windows = some_windows()
    first, second = Producer(windows), Producer(windows)
    now_s = after_cycles([first, second])

    first.fill(now_s)
    assert windows.full_at_s(now_s) == now_s + POLICY.refill_wait_s
    second.fill(now_s)

    assert windows.full_at_s(now_s) == now_s


def test_a_sporadic_producer_delays_no_limited_one() -> None:
    windows = some_windows()
    producer, seldom = Producer(windows), Producer(windows, width=1)
    now_s = after_cycles([producer])
    seldom.fill(now_s)
    producer.fill(now_s)

    assert not seldom.window.is_limited
    assert windows.full_at_s(now_s) == now_s


def test_requests_without_answers_never_count_as_a_full_window() -> None:
    windows = some_windows()
    producer = Producer(windows)
    now_s = after_cycles([producer])
    producer.fill(now_s)

    windows.took(None, 1, 100, now_s)
    assert windows.full_at_s(now_s) is None
    windows.sealed(is_rest_empty=True)
    producer.answered(now_s)
    producer.fill(now_s)

    assert windows.full_at_s(now_s) == now_s


def test_batches_left_by_a_seal_are_not_sealed_early() -> None:
    windows = some_windows()
    producer = Producer(windows)
    now_s = after_cycles([producer])

    windows.sealed(is_rest_empty=False)
    producer.fill(now_s)

    assert windows.full_at_s(now_s) is None


def test_a_window_that_became_narrower_is_forgotten_with_its_history() -> None:
    windows = some_windows()
    producer = Producer(windows)
    after_cycles([producer])
    producer.width = 2

    after_cycles([producer], 150)

    assert producer.window.widest == 2


def test_a_single_pause_does_not_end_a_producers_limit() -> None:
    windows = some_windows()
    producer = Producer(windows)
    now_s = after_cycles([producer], 60)
    assert producer.window.is_steadily_limited

    producer.fill(now_s + 3.0)

    assert producer.window.is_limited
    assert not producer.window.is_steadily_limited


class Flusher(Producer):
    """Sends a few requests 10 ms apart, and waits for all answers before it goes on."""

    def burst(self, now_s: float, requests: int, answer_s: float) -> float:
        """Requests, and a seal that is answered `answer_s` after the last one. Returns the time."""
        for _ in range(requests):
            now_s += 0.01
            self.send(now_s)
        self.windows.sealed(is_rest_empty=True)
        now_s += answer_s
        self.answered(now_s)
        return now_s


def after_bursts(flusher: Flusher, answer_s: float = 0.25, pause_s: float = 0.0) -> float:
    """Each has fewer requests than the widest."""
    now_s = flusher.burst(0.0, 5, answer_s)
    for number in range(20):
        now_s = flusher.burst(now_s + pause_s, 3 + number % 2, answer_s)
    return now_s


def test_a_producer_that_waits_for_its_last_answers_is_waited_for_a_moment() -> None:
    windows = some_windows()
    flusher = Flusher(windows)
    now_s = after_bursts(flusher) + 0.01

    flusher.send(now_s)
    flusher.send(now_s + 0.01)

    silent_s = windows.full_at_s(now_s + 0.01)
    assert silent_s is not None
    assert 0.015 <= silent_s - now_s - 0.01 <= 0.025  # about twice the usual pause


def test_a_producer_whose_answers_come_between_its_requests_does_not_flush() -> None:
    """Steady requests, 10 ms apart, and answers 5 ms after the last one."""
    windows = some_windows()
    steady = Flusher(windows)
    now_s = after_bursts(steady, answer_s=0.005) + 0.01

    steady.send(now_s)

    assert windows.full_at_s(now_s + 1) is None


def test_a_producer_that_fills_its_window_now_and_then_still_flushes() -> None:
    windows = some_windows()
    flusher = Flusher(windows)
    now_s = after_bursts(flusher)
    now_s = flusher.burst(now_s, 5, 0.25) + 0.01

    flusher.send(now_s)

    assert windows.full_at_s(now_s) is not None


def test_a_producer_that_pauses_after_its_answers_does_not_flush() -> None:
    windows = some_windows()
    flusher = Flusher(windows)
    now_s = after_bursts(flusher, pause_s=0.03) + 0.01

    flusher.send(now_s)

    assert windows.full_at_s(now_s + 1) is None


def test_a_producer_with_room_in_its_window_delays_a_flush() -> None:
    windows = some_windows()
    flusher, other = Flusher(windows), Producer(windows)
    now_s = after_bursts(flusher) + 0.01
    other.send(now_s)
    other.send(now_s)
    windows.sealed(is_rest_empty=True)
    other.answered(now_s)

    flusher.send(now_s)
    assert windows.full_at_s(now_s) is not None
    other.send(now_s)

    assert windows.full_at_s(now_s + 1) is None


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["send", "answer", "seal"])), max_size=300)
)
def test_the_counters_equal_a_full_recount_of_the_windows(steps: list[tuple[int, str]]) -> None:
    windows = some_windows()
    each = [ProducerWindow() for _ in range(4)]
    waiting: set[ProducerWindow] = set()
    now_s = 0.0

    for number, step in steps:
        now_s += 0.001 if step == "send" else 0.006
        window = each[number]
        if step == "send":
            windows.took(window, 1, 100, now_s)
            waiting.add(window)
        elif step == "seal":
            windows.sealed(is_rest_empty=True)
            waiting.clear()
        elif window.in_flight:
            windows.answered(window, now_s, now_s)

        are_full = all(one.is_full or one.flushes for one in waiting) and any(
            one.is_limited or one.flushes for one in waiting
        )
        assert windows.are_full == are_full
