"""Which class a request is of, by the marks of its user and of its topics."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from agent.traffic_class import TrafficClass, class_of
from sequencer.topics.topics import Topic
from storage.identifiers import TopicId

INTERACTIVE, NORMAL, BULK = TrafficClass.INTERACTIVE, TrafficClass.NORMAL, TrafficClass.BULK


def marked(mark: str | None) -> Topic | None:
    if mark == "unknown":
        return None
    config = {} if mark is None else {"tidelog.priority": mark}
    return Topic(
        topic_id=TopicId(uuid4()), name="t", partition_count=1, config=config, created_at=datetime.now(UTC)
    )


@pytest.mark.parametrize(
    ("of_user", "of_topics", "traffic"),
    [
        (None, (), NORMAL),
        (None, (None, "unknown", "normal"), NORMAL),
        (None, (None, "interactive"), INTERACTIVE),
        (None, ("interactive", "bulk", None), BULK),
        (1.0, (None,), INTERACTIVE),
        (1.0, ("bulk",), BULK),
        (2.0, ("interactive",), BULK),
        (2.0, (), BULK),
    ],
)
def test_bulk_wins_over_interactive_and_any_mark_over_none(
    of_user: float | None, of_topics: tuple[str | None, ...], traffic: TrafficClass
) -> None:
    assert class_of(of_user, map(marked, of_topics)) is traffic
