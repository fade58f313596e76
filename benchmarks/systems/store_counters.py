"""Requests as MinIO counts them. The same for every system."""

from benchmarks.endpoints import Endpoint
from benchmarks.systems.meters import scrape, total


def store_counters(endpoint: Endpoint) -> dict[str, float]:
    samples = scrape(endpoint.metrics_url)
    return {
        "puts": total(samples, "minio_api_requests_total", 'name="PutObject'),
        "gets": total(samples, "minio_api_requests_total", 'name="GetObject'),
    }
