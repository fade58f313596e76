"""What `tidelog ttl` says of each topic."""

import pytest

from spark_compaction.ttl import TopicExpiry
from tidelog.commands.ttl import _remark


@pytest.mark.parametrize(
    ("expiry", "remark"),
    [
        (TopicExpiry(topic="orders"), ""),
        (TopicExpiry(topic="orders", busy=True), "left to another job at work"),
        (TopicExpiry(topic="orders", files_deferred=2), "2 partly expired files wait for the next pass"),
        (
            TopicExpiry(topic="orders", files_deferred=2, waits="no key"),
            "2 partly expired files wait: no key",
        ),
    ],
    ids=["done", "busy", "deferred", "without a key"],
)
def test_the_remark_says_what_is_left(expiry: TopicExpiry, remark: str) -> None:
    assert remark in _remark(expiry)
    assert bool(remark) == bool(_remark(expiry))
