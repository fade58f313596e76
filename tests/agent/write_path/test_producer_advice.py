"""What a producer that its own window limits should set."""

import pytest

from agent.write_path.producer_window import ProducerWindow, WindowPolicy, advice

POLICY = WindowPolicy(refill_s=0.02, refill_wait_s=0.004)


def a_window(width: int, batch_bytes: int, refill_s: float = 0.001) -> ProducerWindow:
    """After some hundreds of requests, `width` at a time."""
    window, now_s = ProducerWindow(), 0.0
    for _ in range(200):
        for _ in range(width):
            window.sent(1, batch_bytes, now_s + refill_s, POLICY)
        now_s += 0.1
        for _ in range(width):
            window.answered(now_s - 0.1, now_s, POLICY)
    return window


@pytest.mark.parametrize(
    ("library", "settings"),
    [
        ("apache-kafka-java", "batch.size=262144 and linger.ms=50"),
        ("kafka-python", "linger_ms=50"),
        ("", "256 KiB"),
    ],
)
def test_a_limited_producer_is_advised_in_its_librarys_words(library: str, settings: str) -> None:
    said = advice(a_window(5, 16_384), library)

    assert said is not None
    assert "5 requests in flight, with batches of 16 KiB" in said
    assert settings in said


def test_the_advice_for_a_producer_that_waits_for_each_answer() -> None:
    said = advice(a_window(1, 700), "librdkafka")

    assert said is not None
    assert "waits for each answer" in said


@pytest.mark.parametrize(
    "window",
    [ProducerWindow(), a_window(5, 16_384, refill_s=0.06), a_window(5, 900_000)],
    ids=["new", "slow", "large"],
)
def test_there_is_no_advice_if_larger_batches_would_not_help(window: ProducerWindow) -> None:
    assert advice(window, "apache-kafka-java") is None
