"""Reads samples from the bytes that a client pushes: OpenTelemetry's MetricsData (KIP-714). Pure.

Gauges and sums are read, which is what Kafka's clients send. Other kinds are skipped. Promises:
- No text is longer than `LONGEST_TEXT`.
- No more samples are made than asked for.
"""

import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, MetricsData

from agent.telemetry.instances import LONGEST_TEXT, Sample

_MOST_ATTRIBUTES: Final = 8
_KAFKAS: Final = "org.apache.kafka."
_NO_NAME_CHARACTER: Final = re.compile(r"[^a-zA-Z0-9_]+")
_OF_A_CLIENT: Final = frozenset({"client_rack", "group_id", "group_instance_id", "transactional_id"})


class InvalidMetrics(Exception):
    """The bytes are not MetricsData."""


def read_samples(payload: bytes, most: int) -> list[Sample]:
    """Returns at most `most` samples. Raises InvalidMetrics."""
    try:
        data = MetricsData.FromString(payload)
    except (DecodeError, ValueError) as error:
        raise InvalidMetrics(str(error)) from error
    return list(islice(_samples(data), most))


def metric_name(name: str) -> str:
    """Returns the name in Prometheus' form: `org.apache.kafka.producer.x.y` is `producer_x_y`."""
    return _NO_NAME_CHARACTER.sub("_", name.removeprefix(_KAFKAS)[:LONGEST_TEXT]).strip("_") or "unnamed"


def label_name(key: str) -> str:
    """Returns the name in Prometheus' form: it does not begin with a digit."""
    name = metric_name(key)
    return f"_{name}" if name[0].isdigit() else name


def _samples(data: Any) -> Iterator[Sample]:
    for resource in data.resource_metrics:
        of_client = [item for item in _attributes(resource.resource.attributes) if item[0] in _OF_A_CLIENT]
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind not in ("gauge", "sum"):
                    continue
                points = getattr(metric, kind).data_points
                is_delta = (
                    kind == "sum" and metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
                )
                for point in points:
                    value = float(getattr(point, point.WhichOneof("value") or "as_double"))
                    if not math.isfinite(value):
                        continue  # a mean without values
                    attributes = dict([*of_client, *_attributes(point.attributes)])
                    yield Sample(
                        series=(metric_name(metric.name), tuple(sorted(attributes.items()))),
                        value=value,
                        is_delta=is_delta,
                    )


def _attributes(attributes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for attribute in islice(attributes, _MOST_ATTRIBUTES):
        kind = attribute.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            yield label_name(attribute.key), str(getattr(attribute.value, kind))[:LONGEST_TEXT]
