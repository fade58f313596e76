"""The Iceberg catalog's routes, as a client of the REST protocol sees them. `tests/spark_compaction` shows
that Spark and PyIceberg read through them.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from agent.http import iceberg
from sequencer.client import Sequencer
from sequencer.history.history_values import HistoryJob, Publication, Published, StagedVersion
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectStore, StoreSettings

FILE_IO = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint": "http://127.0.0.1:1"}


def client(sequencer: Sequencer | None, store: ObjectStore | None) -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(iceberg.router(lambda: sequencer, lambda: store, FILE_IO))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent/iceberg/v1")


@pytest.fixture
async def catalog(sequencer: Sequencer, store: ObjectStore) -> AsyncIterator[httpx.AsyncClient]:
    async with client(sequencer, store) as opened:
        yield opened


async def published(sequencer: Sequencer, store: ObjectStore, topic: str) -> dict[str, Any]:
    """A topic whose history has this metadata, without the data that the metadata would name."""
    created = await sequencer.topics.create(topic, 1, {})
    await sequencer.database.run("INSERT INTO history_tables (topic_id) VALUES (%(id)s)", id=created.topic_id)
    job = await sequencer.history.begin(created.topic_id, "expire", cluster="c", lease_s=60)
    assert isinstance(job, HistoryJob)
    location = f"s3://bucket/prefix/c/history/{created.topic_id}"
    metadata = {"format-version": 2, "location": location, "table-uuid": str(created.topic_id)}
    key = ObjectKey(f"{job.prefix}00001.metadata.json")
    await store.put(key, [json.dumps(metadata).encode()])
    version = StagedVersion(
        on=job.table, metadata_key=key, sequence_number=1, written=[key], let_go=[], oldest_version=1
    )
    answer = await sequencer.history.publish(job, Publication(version=version))
    assert answer == Published()
    return {"metadata": metadata, "location": f"s3://bucket/prefix/{key}"}


async def test_the_catalog_says_how_to_read_files_and_that_it_is_read_only(
    catalog: httpx.AsyncClient,
) -> None:
    config = (await catalog.get("config")).json()

    assert config["defaults"] == FILE_IO
    assert not [endpoint for endpoint in config["endpoints"] if endpoint.startswith(("DELETE", "PUT"))]
    assert (await catalog.get("namespaces")).json()["namespaces"] == [["topics"]]
    assert (await catalog.get("namespaces", params={"parent": "topics"})).json()["namespaces"] == []
    assert (await catalog.get("namespaces/topics")).json()["namespace"] == ["topics"]
    assert (await catalog.head("namespaces/topics")).status_code == 204
    assert (await catalog.post("namespaces", json={"namespace": ["mine"]})).json()["error"]["code"] == 406
    assert (await catalog.delete("namespaces/topics/tables/x")).status_code == 406


async def test_a_table_is_the_topic_with_its_current_metadata(
    catalog: httpx.AsyncClient, sequencer: Sequencer, store: ObjectStore
) -> None:
    topic = await published(sequencer, store, "orders.by-day_1")

    tables = (await catalog.get("namespaces/topics/tables")).json()["identifiers"]
    loaded = (await catalog.get("namespaces/topics/tables/orders.by-day_1")).json()

    assert tables == [{"namespace": ["topics"], "name": "orders.by-day_1"}]
    assert loaded["metadata"] == topic["metadata"]
    assert loaded["metadata-location"] == topic["location"]
    assert loaded["config"] == {}
    assert (await catalog.head("namespaces/topics/tables/orders.by-day_1")).status_code == 204
    report = await catalog.post(
        "namespaces/topics/tables/orders.by-day_1/metrics", json={"report-type": "scan-report"}
    )
    assert report.status_code == 204


async def test_tables_come_in_pages_if_the_client_asks_for_pages(
    catalog: httpx.AsyncClient, sequencer: Sequencer, store: ObjectStore
) -> None:
    names = [f"topic-{number}" for number in range(5)]
    for name in names:
        await published(sequencer, store, name)

    found: list[str] = []
    token: str | None = ""
    while token is not None:
        parameters: dict[str, str | int] = {"pageToken": token, "pageSize": 2}
        page = (await catalog.get("namespaces/topics/tables", params=parameters)).json()
        assert len(page["identifiers"]) <= 2
        found += [table["name"] for table in page["identifiers"]]
        token = page["next-page-token"]

    assert found == names
    whole = (await catalog.get("namespaces/topics/tables", params={"pageSize": 2})).json()
    assert [table["name"] for table in whole["identifiers"]] == names
    assert whole["next-page-token"] is None


async def test_topics_whose_names_differ_in_case_are_tables_of_different_names(
    catalog: httpx.AsyncClient, sequencer: Sequencer, store: ObjectStore
) -> None:
    older = await published(sequencer, store, "Orders")
    newer = await published(sequencer, store, "orders")
    newer_id = newer["metadata"]["table-uuid"]

    tables = (await catalog.get("namespaces/topics/tables")).json()["identifiers"]

    names = [table["name"] for table in tables]
    assert names == ["Orders", f"orders__{newer_id[:8]}"]
    for name, topic in (("Orders", older), ("ORDERS", older), (names[1], newer), (names[1].upper(), newer)):
        loaded = (await catalog.get(f"namespaces/topics/tables/{name}")).json()
        assert loaded["metadata"] == topic["metadata"], name
    assert older["metadata"]["location"] != newer["metadata"]["location"]


async def test_a_table_that_did_not_change_is_not_sent_again(
    catalog: httpx.AsyncClient, sequencer: Sequencer, store: ObjectStore
) -> None:
    await published(sequencer, store, "orders")
    path = "namespaces/topics/tables/orders"
    etag = (await catalog.get(path)).headers["ETag"]

    again = await catalog.get(path, headers={"If-None-Match": etag})
    other = await catalog.get(path, headers={"If-None-Match": etag}, params={"snapshots": "refs"})

    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
    assert other.status_code == 200
    assert other.json()["metadata"]["snapshots"] == []


async def test_missing_tables_are_errors_in_the_catalogs_own_form(
    catalog: httpx.AsyncClient, sequencer: Sequencer, store: ObjectStore
) -> None:
    await sequencer.topics.create("new", 1, {})
    await published(sequencer, store, "gone")
    await sequencer.topics.delete("gone")

    async def error(path: str) -> dict[str, Any]:
        answer = await catalog.get(path)
        body: dict[str, Any] = answer.json()["error"]
        assert answer.status_code == body["code"] == 404
        return body

    assert (await error("namespaces/mine"))["type"] == "NoSuchNamespaceException"
    assert (await error("namespaces/mine/tables"))["type"] == "NoSuchNamespaceException"
    assert "run `tidelog compact new`" in (await error("namespaces/topics/tables/new"))["message"]
    assert "no such topic" in (await error("namespaces/topics/tables/gone"))["message"]
    assert (await error("namespaces/topics%1Fgone/tables/snapshots"))["type"] == "NoSuchTableException"
    assert (await catalog.head("namespaces/topics/tables/none")).status_code == 404
    assert (await catalog.get("namespaces/topics/tables")).json()["identifiers"] == []


async def test_without_a_database_or_a_store_the_catalog_is_not_available(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    await published(sequencer, store, "orders")

    async with client(None, store) as starting:
        assert (await starting.get("config")).status_code == 200
        assert (await starting.get("namespaces/topics/tables")).status_code == 503
        assert (await starting.get("namespaces/topics/tables/orders")).status_code == 503
    async with client(sequencer, None) as starting:
        error = (await starting.get("namespaces/topics/tables/orders")).json()["error"]
    assert (error["code"], error["type"]) == (503, "ServiceUnavailableException")


def test_readers_learn_the_endpoint_and_never_the_agents_keys() -> None:
    settings = StoreSettings(s3_access_key="access", s3_secret_key=SecretStr("secret"))

    config = iceberg.file_io_config("s3://bucket/prefix?endpoint=http://store:9000", settings)

    assert not {"access", "secret"} & set(config.values())
    assert (config["s3.endpoint"], config["s3.path-style-access"]) == ("http://store:9000", "true")
    assert "s3.endpoint" not in iceberg.file_io_config("s3://bucket", settings)
    local = iceberg.file_io_config("file:///data", settings)
    assert local == {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
