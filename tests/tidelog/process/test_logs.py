"""Log lines are one event with fields, in two forms."""

import json
import logging
from typing import Any

import pytest

from tidelog.process.logs import FewerRepeats, JsonLines, KeyValueLines


def a_record(message: str, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "tidelog", "levelno": 20, "levelname": "INFO", "msg": message, **fields}
    )


def test_json_lines_carry_the_fields() -> None:
    line = JsonLines().format(a_record("agent ready", kafka_port=9092, zone="a"))

    assert json.loads(line) | {"at": ""} == {
        "at": "", "level": "info", "logger": "tidelog", "event": "agent ready", "kafka_port": 9092,
        "zone": "a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ('a"b', '"a\\"b"'),
        ("a\nb", '"a\\nb"'),
        ("a\u2028b\x85\x9b31m\u202e", '"a\\u2028b\\u0085\\u009b31m\\u202e"'),
        ("größe", "größe"),
        (7, "7"),
    ],
)
def test_key_value_lines_quote_only_what_needs_it(value: object, written: str) -> None:
    line = KeyValueLines().format(a_record("x", field=value))

    assert line.endswith(f"event=x field={written}")


@pytest.mark.parametrize("form", [JsonLines(), KeyValueLines()])
def test_an_error_stays_one_line(form: logging.Formatter) -> None:
    try:
        raise ValueError("several\nlines")
    except ValueError as error:
        record = a_record("failed", exc_info=(type(error), error, error.__traceback__))

    line = form.format(record)

    assert "\n" not in line
    assert "ValueError" in line


def test_a_line_said_again_and_again_is_told_a_few_times_and_then_counted() -> None:
    fewer = FewerRepeats()
    repeated = [a_record("bad request from %s", created=100.0 + number / 100) for number in range(100)]

    told = [record for record in repeated if fewer.filter(record)]
    later = a_record("bad request from %s", created=111.0)

    assert told == repeated[:20]
    assert fewer.filter(a_record("another", created=100.5)), "each kind for itself"
    assert fewer.filter(later)
    assert "not_told_before=80" in KeyValueLines().format(later)


def a_warning(message: str, at_s: float, **fields: Any) -> logging.LogRecord:
    return a_record(message, levelno=logging.WARNING, created=at_s, **fields)


def test_a_state_that_lasts_is_told_once_and_then_every_minute() -> None:
    fewer = FewerRepeats()
    tries = [
        a_warning("jobs wait", float(at_s), reason=f"port 5432, try {at_s}", retry_s=at_s)
        for at_s in range(150)
    ]

    told = [record for record in tries if fewer.filter(record)]

    assert [record.created for record in told] == [0.0, 60.0, 120.0]
    assert "not_told_before=59" in KeyValueLines().format(told[1])
    assert fewer.filter(a_warning("jobs wait", 149.5, reason="another reason")), "another state"


def test_a_state_that_ended_and_begins_again_is_news() -> None:
    fewer = FewerRepeats()

    assert fewer.filter(a_warning("agent stops serving", 1.0))
    assert not fewer.filter(a_warning("agent stops serving", 2.0))
    assert fewer.filter(a_record("agent serves again", created=3.0))
    assert fewer.filter(a_warning("agent stops serving", 4.0))


def test_lines_of_one_kind_that_keep_coming_are_told_less_and_less_often() -> None:
    fewer = FewerRepeats()
    letters = str.maketrans("0123456789", "abcdefghij")
    failed = [a_warning("upload failed", at / 10, key=str(at).translate(letters)) for at in range(600)]

    told = [record for record in failed if fewer.filter(record)]

    assert len([record for record in told if record.created < 10]) == 20
    assert len([record for record in told if record.created >= 10]) == 5
