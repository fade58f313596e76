"""The targets, and whether a run met them. Pure: takes medians and ratios of a run's rounds, and returns
verdicts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.results import Results

LOCAL, TIDELOG, KAFKA, TANSU, TANSU_PLAIN = "tidelog-local", "tidelog", "kafka", "tansu", "tansu-plain"
_MOST_MEMORY_MIB = 1024.0
"""With the defaults, the named byte settings add up to more. So this bound is the one that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`met` is None where something was not measured."""

    what: str
    target: str
    measured: str
    met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """A median and its limit."""

    value: float | None
    limit: float | None
    at_least: bool = False
    unit: str = ""
    digits: int = 2

    @property
    def met(self) -> bool | None:
        if self.value is None or self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def text(self) -> str:
        if self.value is None:
            return "not measured"
        sign = "≥" if self.at_least else "≤"
        against = "" if self.limit is None else f" ({sign} {_number(self.limit, self.digits)})"
        return f"{_number(self.value, self.digits)}{self.unit}{against}"


def verdicts(results: Results) -> list[Verdict]:
    """A verdict for each row of the table of targets, in its order."""
    return [judge(results) for judge in _ROWS]


def _row(what: str, target: str, *bounds: _Bound) -> Verdict:
    met = [bound.met for bound in bounds]
    verdict = False if False in met else None if None in met else True
    return Verdict(
        what=what, target=target, measured=", ".join(bound.text() for bound in bounds), met=verdict
    )


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def _plus(*parts: float | None) -> float | None:
    return None if None in parts else sum(part for part in parts if part is not None)


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _most(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _ratio(results: Results, workload: str, over: tuple[str, str], under: tuple[str, str]) -> float | None:
    spread = results.ratio(workload, over, under)
    return spread.median if spread else None


def _produce_cpu(results: Results) -> Verdict:
    kafka = results.median("a", KAFKA, "server_cpu_s_per_gb")
    return _row(
        "agent CPU per GB produced, (a)",
        "below the Kafka broker's own and at most 2.5 s",
        _Bound(
            value=results.median("a", TIDELOG, "server_cpu_s_per_gb"),
            limit=None if kafka is None else min(kafka, 2.5),
            unit=" s",
        ),
    )


def _tail_cpu(results: Results) -> Verdict:
    return _row(
        "agent CPU per GB consumed from the tail, (e)",
        "at most 0.8 s",
        *(
            _Bound(
                value=results.median("e", TIDELOG, f"consume_cpu_s_per_gb_{zone}"),
                limit=0.8,
                unit=f" s in {where}",
            )
            for zone, where in (("a", "the writer's zone"), ("b", "the other"))
        ),
    )


def _record_cpu(results: Results) -> Verdict:
    name = "server_cpu_s_per_million_records"
    return _row(
        "agent CPU per million records, (b)",
        "below the Kafka broker's own",
        _Bound(value=results.median("b", TIDELOG, name), limit=results.median("b", KAFKA, name), unit=" s"),
    )


def _slowest_of_tansu(results: Results, workload: str) -> float | None:
    """The ratio to Tansu's better way to produce: the smaller of the two."""
    ratios = [
        _ratio(results, workload, (TIDELOG, "mb_per_s"), (tansu, "mb_per_s"))
        for tansu in (TANSU, TANSU_PLAIN)
    ]
    return _least(*ratios)


def _throughput(results: Results) -> Verdict:
    return _row(
        "produce throughput (a), one agent",
        "at least 0.6 of raw PUT by the same S3 client at 8 MiB, and at least 4 times Tansu",
        _Bound(
            value=_ratio(results, "a", (TIDELOG, "mb_per_s"), (TIDELOG, "raw_put_mb_per_s")),
            limit=0.6,
            at_least=True,
            unit=" of raw PUT",
        ),
        _Bound(
            value=_slowest_of_tansu(results, "a"), limit=4.0, at_least=True, unit=" times Tansu", digits=1
        ),
    )


def _local_throughput(results: Results) -> Verdict:
    return _row(
        "produce throughput (a), local-directory store",
        "at least that of Kafka",
        _Bound(
            value=_ratio(results, "a", (LOCAL, "mb_per_s"), (KAFKA, "mb_per_s")),
            limit=1.0,
            at_least=True,
            unit=" of Kafka",
        ),
    )


def _small_throughput(results: Results) -> Verdict:
    return _row(
        "produce throughput (b)",
        "at least 5 times Tansu, at least 0.8 of Kafka",
        _Bound(
            value=_slowest_of_tansu(results, "b"), limit=5.0, at_least=True, unit=" times Tansu", digits=1
        ),
        _Bound(
            value=_ratio(results, "b", (TIDELOG, "mb_per_s"), (KAFKA, "mb_per_s")),
            limit=0.8,
            at_least=True,
            unit=" of Kafka",
        ),
    )


def _lone_ack(results: Results) -> Verdict:
    put, commit = (results.median("d", TIDELOG, name) for name in ("raw_put_p50_ms", "commit_p50_ms"))
    return _row(
        "ack p50 of (d)",
        "at most raw PUT p50 + one commit + 5 ms while the PUT budget lasts",
        _Bound(
            value=results.median("d", TIDELOG, "ack_p50_ms"),
            limit=_plus(put, commit, 5.0),
            unit=" ms",
            digits=1,
        ),
    )


def _lingering_ack(results: Results) -> Verdict:
    def of(name: str) -> float | None:
        return results.median("c", TIDELOG, name)

    return _row(
        "ack of (c), linger 250 ms, budget spent",
        "p50 at most 125 ms + raw PUT p50 + 15 ms, p99 at most 250 ms + raw PUT p99 + 30 ms; "
        "end-to-end p50 at most 1.1 times ack p50",
        _Bound(
            value=of("ack_p50_ms"), limit=_plus(125.0, of("raw_put_p50_ms"), 15.0), unit=" ms p50", digits=0
        ),
        _Bound(
            value=of("ack_p99_ms"), limit=_plus(250.0, of("raw_put_p99_ms"), 30.0), unit=" ms p99", digits=0
        ),
        _Bound(
            value=_ratio(results, "c", (TIDELOG, "end_to_end_p50_ms"), (TIDELOG, "ack_p50_ms")),
            limit=1.1,
            unit=" end-to-end p50 to ack p50",
        ),
    )


def _gets(results: Results) -> Verdict:
    return _row(
        "GETs in the writer's zone for tail reads; elsewhere",
        "0; at most 1.1 per object and zone",
        _Bound(value=results.median("e", TIDELOG, "gets_per_object_a"), limit=0.0, unit=" in the writer's"),
        _Bound(
            value=results.median("e", TIDELOG, "gets_per_object_b"), limit=1.1, unit=" per object elsewhere"
        ),
    )


def _catch_up(results: Results) -> Verdict:
    ratios = [
        _ratio(results, "f", (TIDELOG, "catch_up_mb_per_s"), (TIDELOG, name))
        for name in ("raw_get_mb_per_s", "null_agent_mb_per_s")
    ]
    return _row(
        "catch-up throughput",
        "at least 0.8 of the smaller of raw GET and a null agent serving the same bytes from memory to "
        "the same consumer",
        _Bound(
            value=None if None in ratios else _most(*ratios), limit=0.8, at_least=True, unit=" of the smaller"
        ),
    )


def _undisturbed(results: Results) -> Verdict:
    names = ("tail_p99_ms_with_replay", "tail_p99_ms_without_replay")
    return _row(
        "the tail's p99 while history is replayed, (f)",
        "at most 1.2 times that without a replay",
        _Bound(
            value=_ratio(results, "f", (TIDELOG, names[0]), (TIDELOG, names[1])), limit=1.2, unit=" times"
        ),
    )


def _commits(results: Results) -> Verdict:
    return _row(
        "commits/s, 10 / 100 partitions each, 8 writers, idempotent",
        "at least 1,500 / 450 on 2 cores shared with the clients",
        *(
            _Bound(
                value=results.median("h", "sequencer", f"commits_per_s_{partitions}_partitions_8_writers"),
                limit=limit,
                at_least=True,
                unit=f" with {partitions}",
                digits=0,
            )
            for partitions, limit in ((10, 1_500.0), (100, 450.0))
        ),
    )


def _start(results: Results) -> Verdict:
    return _row(
        "agent start to first ack",
        "under 1 s, with database and store up",
        _Bound(value=results.median("start", TIDELOG, "start_to_ack_s"), limit=1.0, unit=" s"),
    )


def _memory(results: Results) -> Verdict:
    peaks = [
        one.figures["memory_peak_mib"]
        for one in results.measurements
        if one.system in (TIDELOG, LOCAL) and "memory_peak_mib" in one.figures
    ]
    return _row(
        "memory of an agent under any of these",
        "at most the sum of its named byte settings + 200 MiB, and at most 1 GiB with the defaults",
        _Bound(value=max(peaks, default=None), limit=_MOST_MEMORY_MIB, unit=" MiB at most", digits=0),
    )


_ROWS: Sequence[Callable[[Results], Verdict]] = (
    _produce_cpu,
    _tail_cpu,
    _record_cpu,
    _throughput,
    _local_throughput,
    _small_throughput,
    _lone_ack,
    _lingering_ack,
    _gets,
    _catch_up,
    _undisturbed,
    _commits,
    _start,
    _memory,
)
