"""What RESULTS.md shows of each workload: the rows of its table and the panels of its plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TITLES: Mapping[str, str] = {
    "tidelog": "Tidelog",
    "tidelog-local": "Tidelog, local directory",
    "kafka": "Apache Kafka",
    "tansu": "Tansu",
    "tansu-plain": "Tansu, not idempotent",
    "sequencer": "Sequencer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    figure: str
    title: str
    digits: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The ratio of one figure to another, round by round. `under` is of the same system if none is named."""

    title: str
    over: str
    under: str
    under_system: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Bars: one figure of every system, or several figures of one system."""

    title: str
    figures: Sequence[str]
    labels: Sequence[str] = ("",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    rows: Sequence[Row]
    ratios: Sequence[Ratio] = ()
    panels: Sequence[Panel] = ()


_ACKS = (Row(figure="ack_p50_ms", title="ack p50, ms"), Row(figure="ack_p99_ms", title="ack p99, ms"))
_MEMORY = (
    Row(figure="memory_mib", title="server's memory in the end, MiB", digits=0),
    Row(figure="memory_peak_mib", title="server's memory at most so far, MiB", digits=0),
)
_COSTS = (
    Row(figure="server_cpu_s_per_gb", title="server CPU, s per GB", digits=2),
    Row(figure="server_cpu_s_per_million_records", title="server CPU, s per million records", digits=2),
    Row(figure="postgres_cpu_s_per_gb", title="Postgres CPU, s per GB", digits=2),
    Row(figure="store_cpu_s_per_gb", title="MinIO CPU, s per GB", digits=2),
    Row(figure="clients_cpu_s_per_gb", title="clients' CPU, s per GB", digits=2),
    Row(figure="puts_per_gib", title="PUTs per GiB", digits=0),
    Row(figure="gets_per_gib", title="GETs per GiB", digits=0),
    Row(figure="transactions_per_s", title="Postgres transactions per s", digits=0),
)
_ERRORS = Row(figure="errors", title="errors answered, then retried", digits=0)
_TRANSFER = (
    Row(figure="mb_per_s", title="MB/s"),
    Row(figure="records_per_s", title="records/s", digits=0),
    *_ACKS,
    *_COSTS,
    *_MEMORY,
    _ERRORS,
)
_TRANSFER_PANELS = (
    Panel(title="MB/s", figures=("mb_per_s",)),
    Panel(title="server CPU, s per GB", figures=("server_cpu_s_per_gb",)),
)

_LONG = Section(
    rows=(
        Row(figure="mb_per_s", title="MB/s"),
        *(
            row
            for part in ("server", "postgres", "store")
            for row in (
                Row(
                    figure=f"short_{part}_cpu_s_per_gb",
                    title=f"{part} CPU before merging, s per GB",
                    digits=2,
                ),
                Row(figure=f"{part}_cpu_s_per_gb", title=f"{part} CPU with merging, s per GB", digits=2),
            )
        ),
        Row(figure="merged_per_byte", title="bytes written by merging per byte produced", digits=2),
        Row(figure="backlog_growth_mb", title="growth of what waits to be merged, MB", digits=0),
        Row(figure="short_ack_p50_ms", title="ack p50 before merging, ms"),
        Row(figure="ack_p50_ms", title="ack p50 with merging, ms"),
        Row(figure="short_ack_p99_ms", title="ack p99 before merging, ms"),
        Row(figure="ack_p99_ms", title="ack p99 with merging, ms"),
        Row(figure="puts_per_gib", title="PUTs per GiB, of merging too", digits=0),
        Row(figure="gets_per_gib", title="GETs per GiB, of merging too", digits=0),
        *_MEMORY,
        _ERRORS,
    ),
    ratios=(
        Ratio(
            title="server CPU with merging to before",
            over="server_cpu_s_per_gb",
            under="short_server_cpu_s_per_gb",
        ),
    ),
)

SECTIONS: Mapping[str, Section] = {
    "a": Section(
        rows=(
            *_TRANSFER,
            Row(figure="raw_put_mb_per_s", title="raw PUT beside it, MB/s", digits=0),
            Row(figure="raw_get_mb_per_s", title="raw GET beside it, MB/s", digits=0),
        ),
        ratios=(
            Ratio(title="of raw PUT", over="mb_per_s", under="raw_put_mb_per_s"),
            Ratio(title="MB/s to Kafka's", over="mb_per_s", under="mb_per_s", under_system="kafka"),
            Ratio(title="MB/s to Tansu's", over="mb_per_s", under="mb_per_s", under_system="tansu"),
        ),
        panels=_TRANSFER_PANELS,
    ),
    "b": Section(
        rows=_TRANSFER,
        ratios=(
            Ratio(title="MB/s to Kafka's", over="mb_per_s", under="mb_per_s", under_system="kafka"),
            Ratio(title="MB/s to Tansu's", over="mb_per_s", under="mb_per_s", under_system="tansu"),
        ),
        panels=(
            Panel(title="MB/s", figures=("mb_per_s",)),
            Panel(title="server CPU, s per million records", figures=("server_cpu_s_per_million_records",)),
        ),
    ),
    "c": Section(
        rows=(
            Row(figure="records_per_s", title="records/s", digits=0),
            *_ACKS,
            Row(figure="end_to_end_p50_ms", title="end-to-end p50, ms"),
            Row(figure="end_to_end_p99_ms", title="end-to-end p99, ms"),
            Row(figure="raw_put_p50_ms", title="raw PUT of 512 KiB p50, ms"),
            Row(figure="raw_put_p99_ms", title="raw PUT of 512 KiB p99, ms"),
            Row(figure="puts_per_s", title="PUTs per s"),
            Row(figure="server_cpu_share", title="server CPU, cores", digits=2),
            *_COSTS[1:2],
            *_COSTS[-1:],
            *_MEMORY,
            _ERRORS,
        ),
        ratios=(Ratio(title="end-to-end p50 to ack p50", over="end_to_end_p50_ms", under="ack_p50_ms"),),
        panels=(
            Panel(title="acks, ms", figures=("ack_p50_ms", "ack_p99_ms"), labels=("p50", "p99")),
            Panel(
                title="end to end, ms",
                figures=("end_to_end_p50_ms", "end_to_end_p99_ms"),
                labels=("p50", "p99"),
            ),
        ),
    ),
    "d": Section(
        rows=(
            Row(figure="ack_p50_ms", title="ack p50 within the PUT budget, ms"),
            Row(figure="ack_p99_ms", title="ack p99 within the PUT budget, ms"),
            Row(figure="raw_put_p50_ms", title="raw PUT of 4 KiB p50, ms"),
            Row(figure="raw_put_p99_ms", title="raw PUT of 4 KiB p99, ms"),
            Row(figure="commit_p50_ms", title="one commit p50, ms"),
            Row(figure="unpaced_ack_p50_ms", title="ack p50 without a pause, ms"),
            Row(figure="unpaced_records_per_s", title="records/s without a pause"),
            *_MEMORY,
        ),
        panels=(
            Panel(title="ack, ms", figures=("ack_p50_ms", "unpaced_ack_p50_ms"), labels=("3/s", "no pause")),
        ),
    ),
    "e": Section(
        rows=(
            Row(figure="produced_mb_per_s", title="produced, MB/s"),
            *_ACKS,
            Row(figure="consumed_mb_per_s_a", title="consumed in the writer's zone by three, MB/s"),
            Row(figure="consumed_mb_per_s_b", title="consumed in the other zone by one, MB/s"),
            Row(
                figure="consume_cpu_s_per_gb_a",
                title="server CPU per GB consumed, writer's zone, s",
                digits=2,
            ),
            Row(figure="consume_cpu_s_per_gb_b", title="server CPU per GB consumed, other zone, s", digits=2),
            Row(
                figure="alone_cpu_share_a",
                title="not in it: the producers alone, writer's zone, cores",
                digits=3,
            ),
            Row(
                figure="alone_cpu_share_b",
                title="not in it: the producers alone, other zone, cores",
                digits=3,
            ),
            Row(figure="whole_cpu_s_per_gb_b", title="with it, per GB consumed, other zone, s", digits=2),
            Row(figure="end_to_end_p50_ms_a", title="end-to-end p50, writer's zone, ms"),
            Row(figure="end_to_end_p99_ms_a", title="end-to-end p99, writer's zone, ms"),
            Row(figure="end_to_end_p50_ms_b", title="end-to-end p50, other zone, ms"),
            Row(figure="end_to_end_p99_ms_b", title="end-to-end p99, other zone, ms"),
            Row(figure="gets_per_object_a", title="GETs per object, writer's zone", digits=2),
            Row(figure="gets_per_object_b", title="GETs per object, other zone", digits=2),
            *_MEMORY,
            _ERRORS,
        ),
        panels=(
            Panel(
                title="server CPU, s per GB consumed",
                figures=("consume_cpu_s_per_gb_a", "consume_cpu_s_per_gb_b"),
                labels=("writer's zone", "other zone"),
            ),
            Panel(
                title="end-to-end p50, ms",
                figures=("end_to_end_p50_ms_a", "end_to_end_p50_ms_b"),
                labels=("writer's zone", "other zone"),
            ),
        ),
    ),
    "f": Section(
        rows=(
            Row(figure="catch_up_mb_per_s", title="catch-up, MB/s", digits=0),
            Row(figure="raw_get_mb_per_s", title="raw GET, MB/s", digits=0),
            Row(figure="null_agent_mb_per_s", title="null agent, MB/s", digits=0),
            Row(figure="catch_up_cpu_s_per_gb", title="server CPU, s per GB", digits=2),
            Row(figure="gets_per_gib", title="GETs per GiB", digits=0),
            Row(figure="tail_p50_ms_without_replay", title="tail p50 without a replay, ms"),
            Row(figure="tail_p50_ms_with_replay", title="tail p50 beside a replay, ms"),
            Row(figure="tail_p99_ms_without_replay", title="tail p99 without a replay, ms"),
            Row(figure="tail_p99_ms_with_replay", title="tail p99 beside a replay, ms"),
            Row(figure="replay_beside_tail_mb_per_s", title="that replay, MB/s", digits=0),
            *_MEMORY,
            _ERRORS,
        ),
        ratios=(
            Ratio(title="catch-up to raw GET", over="catch_up_mb_per_s", under="raw_get_mb_per_s"),
            Ratio(title="catch-up to the null agent", over="catch_up_mb_per_s", under="null_agent_mb_per_s"),
            Ratio(
                title="tail p99 beside a replay to without",
                over="tail_p99_ms_with_replay",
                under="tail_p99_ms_without_replay",
            ),
        ),
        panels=(
            Panel(
                title="MB/s",
                figures=("catch_up_mb_per_s", "raw_get_mb_per_s", "null_agent_mb_per_s"),
                labels=("catch-up", "raw GET", "null agent"),
            ),
            Panel(
                title="tail p99, ms",
                figures=("tail_p99_ms_without_replay", "tail_p99_ms_with_replay"),
                labels=("alone", "beside a replay"),
            ),
        ),
    ),
    "g": Section(
        rows=(
            Row(figure="idle_connections", title="idle connections that stayed", digits=0),
            Row(figure="records_per_s", title="records/s of the busy ones", digits=0),
            *_ACKS,
            Row(figure="server_cpu_share", title="server CPU, cores", digits=2),
            Row(figure="memory_before_mib", title="server's memory before, MiB", digits=0),
            *_MEMORY,
            _ERRORS,
        ),
        panels=(
            Panel(title="acks, ms", figures=("ack_p50_ms", "ack_p99_ms"), labels=("p50", "p99")),
            Panel(
                title="server's memory, MiB",
                figures=("memory_before_mib", "memory_mib"),
                labels=("before", "with"),
            ),
        ),
    ),
    "a-long": _LONG,
    "b-long": _LONG,
    "start": Section(
        rows=(
            Row(figure="start_to_ack_s", title="first acknowledgement, s", digits=2),
            Row(figure="start_to_ack_cpu_s", title="CPU until then, s", digits=2),
            Row(figure="exit_s", title="SIGTERM to the end of the process, s", digits=2),
            Row(figure="start_rss_mib", title="memory then, MiB", digits=0),
        ),
        panels=(Panel(title="first acknowledgement, s", figures=("start_to_ack_s",)),),
    ),
}
