"""Log lines are one event with fields, in two forms."""

import json
import logging

import pytest

from tidelog.logs import JsonLines, KeyValueLines


def a_record(message: str, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "agent", "levelno": 20, "levelname": "INFO", "msg": message, **fields})


def test_json_lines_carry_the_fields() -> None:
    line = JsonLines().format(a_record("agent ready", kafka_port=9092, zone="a"))

    assert json.loads(line) | {"at": ""} == {
        "at": "", "level": "info", "logger": "agent", "event": "agent ready", "kafka_port": 9092, "zone": "a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "written"),
    [("plain", "plain"), ("two words", '"two words"'), ("", '""'), ('a"b', '"a\\"b"'), ("a\nb", '"a\\nb"'), (7, "7")],
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
