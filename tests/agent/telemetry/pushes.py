"""OpenTelemetry messages as a client makes them."""

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)


def a_gauge(name: str, value: float, **attributes: str) -> Metric:
    return Metric(name=name, gauge=Gauge(data_points=[_point(value, attributes)]))


def a_sum(name: str, value: float, *, is_delta: bool = False, **attributes: str) -> Metric:
    temporality = AGGREGATION_TEMPORALITY_DELTA if is_delta else AGGREGATION_TEMPORALITY_CUMULATIVE
    return Metric(
        name=name,
        sum=Sum(
            data_points=[_point(value, attributes)], aggregation_temporality=temporality, is_monotonic=True
        ),
    )


def a_payload(*metrics: Metric, **resource: str) -> bytes:
    found = ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=metrics)])
    found.resource.attributes.extend(_attributes(resource))
    payload: bytes = MetricsData(resource_metrics=[found]).SerializeToString()
    return payload


def _point(value: float, attributes: dict[str, str]) -> NumberDataPoint:
    return NumberDataPoint(as_double=value, attributes=_attributes(attributes))


def _attributes(attributes: dict[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes.items()]
