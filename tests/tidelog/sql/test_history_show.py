"""`tidelog history show`: what the tables have, on a running stack."""

import re
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from tests.spark_source.conftest import Topic
from tests.tidelog.sql.conftest import COMPACTED, IN_THE_TAIL
from tidelog.cli import app
from tidelog.process.environment import Environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Show = Callable[..., str]


@pytest.fixture
def show(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Show:
    for name, value in environment.variables.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["history", "show", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_a_topics_sizes_ratio_backlog_and_last_job_are_shown(show: Show, topic: Topic) -> None:
    [line] = [line for line in show(topic.name).splitlines() if topic.name in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]

    name, history, raw, parquet, ratio, files, records, _, backlog, job = cells
    assert (name, history, files, records) == (topic.name, "table", "4", f"{2 * COMPACTED:,}")
    assert backlog == str(IN_THE_TAIL)
    assert re.fullmatch(r"[\d.,]+ (bytes|[kM]B)", raw)
    assert re.fullmatch(r"[\d.,]+ (bytes|[kM]B)", parquet)
    assert float(ratio) > 0
    assert re.fullmatch(r"(compact|merge|expire) ended, .* ago, took .*", job)


def test_a_topic_without_history_has_no_ratio_and_no_job(show: Show, new_topic: Callable[[], Topic]) -> None:
    young = new_topic()

    [line] = [line for line in show(young.name).splitlines() if young.name in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]

    assert (cells[4], cells[5], cells[9]) == ("", "0", "")
