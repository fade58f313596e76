"""Uploads or commits work or do not, as the last ones showed."""

from agent.write_path.outcomes import LastOutcomes


def some_outcomes() -> LastOutcomes:
    return LastOutcomes("uploads", stalled_after_s=10.0)


def test_a_failure_is_a_complaint_until_the_next_success() -> None:
    outcomes = some_outcomes()
    assert outcomes.complaint(0.0) is None

    outcomes.failed("the disk is full", 1.0)
    assert outcomes.complaint(100.0) == "uploads fail: the disk is full"
    outcomes.succeeded(101.0)

    assert outcomes.complaint(200.0) is None


def test_work_without_an_answer_is_a_complaint_and_idleness_is_none() -> None:
    outcomes = some_outcomes()
    assert outcomes.complaint(1_000.0) is None

    outcomes.began(1_000.0)
    assert outcomes.complaint(1_009.0) is None
    assert outcomes.complaint(1_012.0) == "uploads have had no answer for 12 s"
    outcomes.answered_busy(1_012.0)
    assert outcomes.complaint(1_013.0) is None
    outcomes.ended()

    assert outcomes.complaint(2_000.0) is None


def test_one_answered_upload_shows_that_the_store_answers() -> None:
    outcomes = some_outcomes()
    outcomes.began(0.0)
    outcomes.began(8.0)
    outcomes.succeeded(9.0)
    outcomes.ended()

    assert outcomes.complaint(18.0) is None
    assert outcomes.complaint(20.0) is not None
