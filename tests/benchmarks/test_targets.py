"""Whether a run reached its targets, and the page that is written from it."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import results as stored
from benchmarks.render import page
from benchmarks.results import Measurement, Results
from benchmarks.targets import verdicts


def measured(workload: str, system: str, round_number: int = 0, **figures: Any) -> Measurement:
    return Measurement(workload=workload, system=system, round=round_number, figures=figures)


def a_run(*measurements: Measurement) -> Results:
    return Results(about={"date": "today"}, measurements=measurements)


def verdict_of(what: str, *measurements: Measurement) -> bool | None:
    (found,) = [verdict for verdict in verdicts(a_run(*measurements)) if verdict.what.startswith(what)]
    return found.met


@pytest.mark.parametrize(
    ("agent_s", "kafka_s", "met"),
    [(2.0, 4.0, True), (2.6, 4.0, False), (2.0, 1.9, False), (2.0, None, None)],
    ids=["below both", "above 2.5 s", "above Kafka", "Kafka is missing"],
)
def test_cpu_is_held_against_kafka_and_a_number(
    agent_s: float, kafka_s: float | None, met: bool | None
) -> None:
    measurements = [measured("a", "tidelog", server_cpu_s_per_gb=agent_s)]
    if kafka_s is not None:
        measurements.append(measured("a", "kafka", server_cpu_s_per_gb=kafka_s))

    assert verdict_of("agent CPU per GB produced", *measurements) is met


@pytest.mark.parametrize(
    ("other_zone", "met"),
    [({"consume_cpu_s_per_gb_b": 0.7}, True), ({"consume_cpu_s_per_gb_b": 0.9}, False), ({}, None)],
)
def test_the_tail_is_judged_in_both_zones(other_zone: dict[str, Any], met: bool | None) -> None:
    tail = measured("e", "tidelog", consume_cpu_s_per_gb_a=0.4, **other_zone)

    assert verdict_of("agent CPU per GB consumed from the tail", tail) is met


@pytest.mark.parametrize(("plain", "met"), [(20.0, True), (30.0, False)])
def test_tansu_is_taken_at_its_better_way_to_produce(plain: float, met: bool) -> None:
    assert (
        verdict_of(
            "produce throughput (a), one agent",
            measured("a", "tidelog", mb_per_s=100.0, raw_put_mb_per_s=150.0),
            measured("a", "tansu", mb_per_s=10.0),
            measured("a", "tansu-plain", mb_per_s=plain),
        )
        is met
    )


@pytest.mark.parametrize(("ack_ms", "met"), [(10.9, True), (11.1, False)])
def test_a_lone_record_may_take_a_put_a_commit_and_five_milliseconds(ack_ms: float, met: bool) -> None:
    figures: dict[str, Any] = {"ack_p50_ms": ack_ms, "raw_put_p50_ms": 5.0, "commit_p50_ms": 1.0}

    assert verdict_of("ack p50 of (d)", measured("d", "tidelog", **figures)) is met


@pytest.mark.parametrize(("catch_up", "met"), [(450.0, True), (350.0, False)])
def test_catch_up_is_held_against_the_smaller_of_store_and_consumer(catch_up: float, met: bool) -> None:
    figures: dict[str, Any] = {
        "catch_up_mb_per_s": catch_up,
        "raw_get_mb_per_s": 900.0,
        "null_agent_mb_per_s": 500.0,
    }

    assert verdict_of("catch-up", measured("f", "tidelog", **figures)) is met


def test_the_most_memory_of_any_workload_counts() -> None:
    assert verdict_of("memory", measured("a", "tidelog", memory_peak_mib=500.0)) is True
    assert (
        verdict_of(
            "memory",
            measured("a", "tidelog", memory_peak_mib=500.0),
            measured("f", "tidelog", memory_peak_mib=1_100.0),
        )
        is False
    )
    assert verdict_of("memory", measured("a", "kafka", memory_peak_mib=500.0)) is None


def test_a_run_of_nothing_has_no_verdict_on_anything() -> None:
    assert {verdict.met for verdict in verdicts(a_run())} == {None}


def test_a_page_shows_medians_spreads_failures_and_what_a_person_wrote() -> None:
    run = a_run(
        *(measured("a", "tidelog", number, mb_per_s=100.0 + number) for number in range(3)),
        *(measured("a", "kafka", number, mb_per_s=50.0) for number in range(3)),
        Measurement(workload="a", system="tansu", round=0, error="it did not start"),
        measured("h", "sequencer", commits_per_s_10_partitions_8_writers=1_600.0),
    )

    written = page(run, "A word from a person.", ["a"])

    assert "| MB/s | 101.0 (100.0–102.0) | 50.0 |  |" in written
    assert "| MB/s to Kafka's | 2.02 (2.00–2.04) |  |  |" in written
    assert "Tansu failed: `it did not start`" in written
    assert "## What is behind it\n\nA word from a person." in written
    assert "(plots/a.svg)" in written
    assert "| 10 partitions, idempotent: commits/s |  |  | 1,600 |  |" in written
    assert "1,600 with 10 (≥ 1,500), not measured" in written


def test_results_come_back_as_they_were_saved(tmp_path: Path) -> None:
    run = a_run(measured("a", "tidelog", mb_per_s=123.4567891, nothing=float("nan")))

    stored.save(run, tmp_path / "results.json")

    (loaded,) = stored.load(tmp_path / "results.json").measurements
    assert loaded == measured("a", "tidelog", mb_per_s=123.457)
