"""The files for Spark clusters name settings, commands and variables that exist, and one version of Spark."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from typer.testing import CliRunner

from spark_compaction.settings import CompactionSettings
from tests.tidelog.test_infra import INFRA, KNOWN, ROOT
from tidelog.cli import app
from tidelog.process.environment import Environment

SPARK = INFRA / "spark"
KUBERNETES = SPARK / "kubernetes"
SUBMITTED = "/opt/tidelog/tidelog_submit.py"


def documents(name: str) -> list[dict[str, Any]]:
    found = [each for each in yaml.safe_load_all((KUBERNETES / name).read_text()) if each is not None]
    assert all(each["apiVersion"] and each["kind"] and each["metadata"]["name"] for each in found)
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found = yaml.safe_load((SPARK / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def application() -> dict[str, Any]:
    [found] = [each for each in documents("sparkapplication.yaml") if each["kind"] == "SparkApplication"]
    spec = found["spec"]
    assert isinstance(spec, dict)
    return spec


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for job in documents("cronjobs.yaml"):
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        yield job["metadata"]["name"], pod["containers"][0]


@pytest.mark.parametrize(
    "file", sorted(str(path.relative_to(ROOT)) for path in SPARK.rglob("*") if path.is_file())
)
def test_every_variable_named_is_a_setting(file: str) -> None:
    named = set(re.findall(r"\bTIDELOG_[A-Z0-9_]+", (ROOT / file).read_text()))

    assert named - KNOWN == set()


def assert_is_a_command(words: list[str]) -> None:
    said = CliRunner().invoke(app, [*words, "--help"])
    assert said.exit_code == 0, f"there is no command {words}: {said.output}"
    assert "COMMAND [ARGS]" not in said.output, f"{words} is a group"


def test_every_command_exists(compose: dict[str, Any], application: dict[str, Any]) -> None:
    for _, container in containers():
        assert container["args"][0] == "tidelog"
        assert_is_a_command(container["args"][1:])
    assert_is_a_command(application["arguments"])
    submit = compose["services"]["history"]["command"]
    assert submit[0] == "spark-submit"
    assert_is_a_command(submit[submit.index(SUBMITTED) + 1 :])


def test_the_application_runs_the_entry_point_of_the_image(application: dict[str, Any]) -> None:
    dockerfile = (SPARK / "Dockerfile").read_text()

    assert f"COPY tidelog_submit.py {SUBMITTED}\n" in dockerfile
    assert application["mainApplicationFile"] == f"local://{SUBMITTED}"
    assert application["sparkVersion"] == pyspark.__version__
    assert f"pyspark=={pyspark.__version__} " in (ROOT / "requirements.lock").read_text()


def test_only_drivers_get_the_secret_with_the_database(
    compose: dict[str, Any], application: dict[str, Any]
) -> None:
    assert application["driver"]["envFrom"] == [{"secretRef": {"name": "tidelog-history"}}]
    assert not {"env", "envFrom", "envSecretKeyRefs"} & set(application["executor"])
    for name, service in compose["services"].items():
        has_database = "TIDELOG_DATABASE_URL" in service.get("environment", {})
        assert has_database == (name == "history")


def test_the_settings_of_all_validate(compose: dict[str, Any], application: dict[str, Any]) -> None:
    with_compose = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]["history"]["environment"]
    standalone = compose["services"]["history"]["environment"]

    assert dict(standalone.items() - with_compose.items()) == {"TIDELOG_HISTORY_METRICS_PORT": "9100"}
    Environment(standalone).read(CompactionSettings)
    pods = [container["env"] for _, container in containers()] + [application["driver"]["env"]]
    for env in pods:
        variables = {each["name"]: each["value"] for each in env}
        assert all(isinstance(value, str) for value in variables.values()), "Kubernetes takes text alone"
        Environment(variables).read(CompactionSettings)


def test_cron_jobs_never_run_twice_at_once_and_always_end() -> None:
    for job in documents("cronjobs.yaml"):
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        assert job["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] > 0
    assert {name for name, _ in containers()} == {"tidelog-compact", "tidelog-ttl"}


def test_the_image_resolves_no_packages_when_it_starts() -> None:
    dockerfile = (SPARK / "Dockerfile").read_text()
    assert "RUN python -m tidelog.fetch_jars /opt/spark/jars\n" in dockerfile.split("USER tidelog\n")[1]

    [settings] = re.findall(r"(TIDELOG_SPARK_PACKAGES=\S*)$", dockerfile, flags=re.MULTILINE)
    assert settings == "TIDELOG_SPARK_PACKAGES="


def run_entry_point(tmp_path: Path, *arguments: str, **variables: str) -> list[str]:
    """What would be run: `tini` is replaced by a program that prints its arguments."""
    tini = tmp_path / "tini"
    tini.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    tini.chmod(0o755)
    answer = subprocess.run(
        [SPARK / "entrypoint.sh", *arguments],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SPARK_HOME": "/opt/spark", **variables},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_a_command_is_run_as_it_is(tmp_path: Path) -> None:
    assert run_entry_point(tmp_path, "tidelog", "history", "run") == ["-s", "--", "tidelog", "history", "run"]


def test_a_driver_submits_in_its_own_pod(tmp_path: Path) -> None:
    asked = ["--properties-file", "/opt/spark/conf/spark.properties", f"local://{SUBMITTED}", "compact"]

    run = run_entry_point(tmp_path, "driver", *asked, SPARK_DRIVER_BIND_ADDRESS="10.0.0.1")

    conf = "spark.driver.bindAddress=10.0.0.1"
    assert run[2:] == ["/opt/spark/bin/spark-submit", "--conf", conf, "--deploy-mode", "client", *asked]


def test_an_executor_gets_the_options_of_its_driver_in_their_order(tmp_path: Path) -> None:
    java_options = {f"SPARK_JAVA_OPT_{n}": f"-Doption.{n}=a value of {n}" for n in range(12)}
    run = run_entry_point(
        tmp_path,
        "executor",
        **java_options,
        SPARK_DRIVER_URL="spark://driver:7078",
        SPARK_EXECUTOR_ID="3",
        SPARK_EXECUTOR_CORES="2",
        SPARK_EXECUTOR_MEMORY="2g",
        SPARK_APPLICATION_ID="spark-1",
        SPARK_EXECUTOR_POD_IP="10.0.0.2",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_EXECUTOR_POD_NAME="exec-3",
        SPARK_CONF_DIR="/opt/spark/conf",
    )

    assert run[2] == "java"
    assert run[3:15] == list(java_options.values())
    after = run[run.index("-cp") :]
    assert after[1].split(":")[0] == "/opt/spark/conf"
    assert "/opt/spark/jars/*" in after[1].split(":")
    assert after[2:] == shlex.split(
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url spark://driver:7078"
        " --executor-id 3 --cores 2 --app-id spark-1 --hostname 10.0.0.2 --resourceProfileId 0"
        " --podName exec-3"
    )


def test_an_executor_that_lacks_a_variable_fails_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="SPARK_EXECUTOR_MEMORY"):
        run_entry_point(tmp_path, "executor")
