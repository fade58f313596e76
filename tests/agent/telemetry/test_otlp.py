"""From pushed bytes to samples."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import Histogram, HistogramDataPoint, Metric

from agent.telemetry.instances import LONGEST_TEXT, Sample
from agent.telemetry.otlp import InvalidMetrics, metric_name, read_samples
from tests.agent.telemetry.pushes import a_gauge, a_payload, a_sum


def test_gauges_and_sums_become_samples_with_their_attributes() -> None:
    payload = a_payload(
        a_gauge("org.apache.kafka.producer.node.request.latency.avg", 1.5, node_id="3"),
        a_sum("org.apache.kafka.producer.connection.creation.total", 2.0, is_delta=True),
        group_id="g",
        something_else="x",
    )

    assert read_samples(payload, 10) == [
        Sample(
            series=("producer_node_request_latency_avg", (("group_id", "g"), ("node_id", "3"))),
            value=1.5,
            is_delta=False,
        ),
        Sample(series=("producer_connection_creation_total", (("group_id", "g"),)), value=2.0, is_delta=True),
    ]


def test_other_kinds_are_skipped() -> None:
    histogram = Metric(name="h", histogram=Histogram(data_points=[HistogramDataPoint(count=1)]))

    assert [sample.series[0] for sample in read_samples(a_payload(histogram, a_gauge("g", 1.0)), 10)] == ["g"]


def test_a_mean_without_values_is_skipped() -> None:
    assert read_samples(a_payload(a_gauge("g", math.nan), a_gauge("h", math.inf)), 10) == []


def test_no_more_samples_are_made_than_asked_for() -> None:
    assert len(read_samples(a_payload(*[a_gauge(f"m{number}", 1.0) for number in range(100)]), 7)) == 7


def test_texts_are_cut_to_their_bound() -> None:
    [sample] = read_samples(a_payload(a_gauge("n" * 1000, 1.0, key="v" * 1000)), 10)

    name, [(_, value)] = sample.series
    assert len(name) == len(value) == LONGEST_TEXT


def test_keys_that_begin_with_a_digit_stay_distinct_labels() -> None:
    """Under one name they would be a line that no scrape accepts."""
    [sample] = read_samples(a_payload(a_gauge("m", 1.0, **{"0a": "v", "1a": "w"})), 10)

    assert sample.series[1] == (("_0a", "v"), ("_1a", "w"))


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", b"not protobuf", b"\x0a\x7f"])
def test_bytes_that_are_no_metrics_are_invalid(payload: bytes) -> None:
    with pytest.raises(InvalidMetrics):
        read_samples(payload, 10)


@given(st.binary(max_size=200))
def test_any_bytes_are_samples_or_invalid(payload: bytes) -> None:
    try:
        assert len(read_samples(payload, 5)) <= 5
    except InvalidMetrics:
        return


@given(st.text(max_size=50))
def test_any_name_becomes_one_that_prometheus_takes(name: str) -> None:
    assert set(metric_name(name)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
    assert metric_name(name)
