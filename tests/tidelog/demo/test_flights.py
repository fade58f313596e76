"""The demonstration's records are what the source says."""

import json

from tidelog.demo.flights import as_records, digest, mean_arrival_delay, read_flights


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_records_are_json_with_null_for_what_is_missing() -> None:
    table = read_flights()
    records = list(as_records(table.slice(0, 20_000)))
    values = [json.loads(record.value, parse_constant=refuse) for record in records]

    assert table.num_rows == 336_776
    assert values == table.slice(0, 20_000).to_pylist()
    assert any(value["arr_delay"] is None for value in values)


def test_the_key_is_the_tail_number_or_null() -> None:
    table = read_flights()
    missing = table.filter(table["tailnum"].is_null()).slice(0, 10)

    assert missing.num_rows == 10
    assert {record.key for record in as_records(missing)} == {None}
    assert next(as_records(table)).key == b"N14228"


def test_a_record_carries_the_time_of_its_flight() -> None:
    assert next(as_records(read_flights(1))).timestamp_ms == 1_357_034_400_000  # 2013-01-01T10:00:00Z


def test_the_expected_answer_is_the_mean_over_flights_that_arrived() -> None:
    table = read_flights(2_000)
    delays = [
        row["arr_delay"]
        for row in table.to_pylist()
        if row["carrier"] == "UA" and row["arr_delay"] is not None
    ]

    assert mean_arrival_delay(table)["UA"] == sum(delays) / len(delays)


def test_a_digest_tells_null_from_empty_and_key_from_value() -> None:
    assert (
        len(
            {digest(None, b"x"), digest(b"", b"x"), digest(b"x", b""), digest(b"x", None), digest(None, None)}
        )
        == 5
    )
