"""The Iceberg catalog: a tenant's tables are in its namespace, and its users reach nothing else by HTTP."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from agent.http.access import CHECKS, FOR_TENANTS, OPEN
from agent.security.sasl.settings import SaslSettings
from sequencer.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from sequencer.tenants.tenant_limits import TenantLimits
from sequencer.tenants.tenant_names import InvalidTenantName
from storage.stores.object_store import ObjectStore
from tests.agent.http.test_iceberg import published
from tests.agent.running import Running, until_answered
from tests.agent.security.logins.users import add_user
from tests.agent.tenants.two_tenants import PASSWORD, opened, tenants_agent

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = SaslSettings(
    sasl_mechanisms="PLAIN", http_authentication=True, http_open_metrics=False, sasl_failed_delay_ms=0
)
ACME, BETA = httpx.BasicAuth("acme~alice", PASSWORD), httpx.BasicAuth("beta~alice", PASSWORD)
BOB = httpx.BasicAuth("acme~bob", PASSWORD)
ROOT = httpx.BasicAuth("root", PASSWORD)
ANN = httpx.BasicAuth("ann", PASSWORD)
HOSTILE = ["secret", "beta~secret", "~secret", "../beta/secret", "%2e%2e%2fbeta", "free", "acme~own", "%00"]
TABLES = {"acme": ["Orders", "orders", "own"], "beta": ["orders", "secret"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    async with tenants_agent(module_database_url, sasl_settings=SETTINGS) as started:
        await add_user(module_database_url, "ann", PASSWORD)
        await add_user(module_database_url, "gone~ann", PASSWORD)
        async with opened(module_database_url) as sequencer:
            await sequencer.ownership.ratchet(
                store_of(started), started.app._settings.cluster, ratchet_s=600.0
            )
            for tenant, names in TABLES.items():
                for name in names:
                    await published(sequencer, store_of(started), f"{tenant}~{name}")
            await published(sequencer, store_of(started), "free")
            await sequencer.acls.add(
                [
                    Acl(
                        resource_type=ResourceType.TOPIC,
                        pattern_type=PatternType.LITERAL,
                        name=name,
                        operation=operation,
                        principal=principal,
                        host="*",
                        permission=Permission.ALLOW,
                    )
                    for name, principal in (("*", "User:*"), ("acme~own", "User:acme~bob"))
                    for operation in (Operation.DESCRIBE, Operation.READ)
                ],
                100,
            )
        yield started


def store_of(agent: Running) -> ObjectStore:
    store = agent.app._reached.store
    assert store is not None
    return store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(agent: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.app.http_port}", timeout=60) as client:

        async def is_ready() -> bool:
            return (await client.get("/ready")).status_code == 200

        await until_answered(is_ready)
        yield client


async def listed(http: httpx.AsyncClient, auth: httpx.BasicAuth, namespace: str) -> list[str]:
    answer = await http.get(f"/iceberg/v1/namespaces/{namespace}/tables", auth=auth)
    assert answer.status_code == 200, answer.text
    identifiers = answer.json()["identifiers"]
    assert {tuple(one["namespace"]) for one in identifiers} <= {(namespace,)}
    return [one["name"] for one in identifiers]


async def status(http: httpx.AsyncClient, auth: httpx.BasicAuth, path: str) -> int:
    return (await http.get(f"/iceberg/v1/{path}", auth=auth)).status_code


async def test_a_tenants_user_sees_the_namespace_of_its_tenant_alone(http: httpx.AsyncClient) -> None:
    answer = await http.get("/iceberg/v1/namespaces", auth=ACME)
    assert answer.json()["namespaces"] == [["acme"]]
    names = await listed(http, ACME, "acme")
    assert [name for name in names if "__" not in name] == ["Orders", "own"]
    assert len(names) == 3  # `orders` differs from an older table only in case
    loaded = await http.get("/iceberg/v1/namespaces/acme/tables/own", auth=ACME)
    assert loaded.status_code == 200
    # Where a table is says its topic's id. No name is a part of it, so none leads out of it.
    location = loaded.json()["metadata"]["location"]
    assert "own" not in location
    assert ".." not in location

    for namespace in ("topics", "beta", "acme~", "ACME", "acme~own", "", "..", "acme%1Fown"):
        assert await status(http, ACME, f"namespaces/{namespace}/tables") in (404, 406), namespace
        for table in ("orders", "secret", "free", "own", "beta~secret"):
            assert await status(http, ACME, f"namespaces/{namespace}/tables/{table}") in (404, 406), namespace
    for table in (
        "secret",
        "beta~secret",
        "~secret",
        "../beta/secret",
        "%2e%2e%2fbeta",
        "free",
        "acme~own",
        "%00",
    ):
        assert await status(http, ACME, f"namespaces/acme/tables/{table}") in (404, 406), table


async def test_acls_of_the_tenant_say_which_tables_its_users_read(http: httpx.AsyncClient) -> None:
    """The ACL for all topics is one of no tenant."""
    assert await listed(http, BOB, "acme") == ["own"]
    assert await status(http, BOB, "namespaces/acme/tables/own") == 200
    assert await status(http, BOB, "namespaces/acme/tables/Orders") == 404


async def test_an_operator_sees_all_namespaces_and_others_one(
    http: httpx.AsyncClient,
) -> None:
    answers = {
        name: (await http.get("/iceberg/v1/namespaces", auth=auth)).json()["namespaces"]
        for name, auth in (("root", ROOT), ("ann", ANN))
    }
    assert answers == {"root": [["topics"], ["acme"], ["beta"]], "ann": [["topics"]]}
    assert await listed(http, ROOT, "beta") == ["orders", "secret"]
    assert await status(http, ROOT, "namespaces/beta/tables/secret") == 200
    assert await status(http, ROOT, "namespaces/topics/tables/beta~secret") == 200
    assert await listed(http, ANN, "topics") == ["free"]
    assert await status(http, ANN, "namespaces/topics/tables/beta~secret") == 404
    for path in ("namespaces/beta", "namespaces/beta/tables", "namespaces/beta/tables/secret"):
        assert await status(http, ANN, path) == 404
    assert (await http.head("/iceberg/v1/namespaces/beta", auth=ROOT)).status_code == 204
    assert await status(http, ROOT, "namespaces/gamma/tables") == 404


async def test_pages_of_a_tenants_tables_name_none_of_others(http: httpx.AsyncClient) -> None:
    found: list[str] = []
    token: str | None = ""
    while token is not None:
        answer = await http.get(
            "/iceberg/v1/namespaces/acme/tables", auth=ACME, params={"pageToken": token, "pageSize": 1}
        )
        page = answer.json()
        assert "~" not in answer.text
        found += [one["name"] for one in page["identifiers"]]
        token = page["next-page-token"]
    assert found == await listed(http, ACME, "acme")
    for token in ("~", "beta~", "\x7f", "../beta"):
        answer = await http.get("/iceberg/v1/namespaces/acme/tables", auth=ACME, params={"pageToken": token})
        assert "secret" not in answer.text
        assert "free" not in answer.text


@pytest.mark.parametrize(
    ("method", "path"), sorted({*CHECKS, *((m, p) for p in OPEN for m in ("GET", "POST"))})
)
async def test_no_route_shows_a_tenants_user_what_is_not_its_own(
    http: httpx.AsyncClient, method: str, path: str
) -> None:
    filled = (
        "/iceberg/v1/a/b"
        if "refused" in path
        else path.format(namespace="beta", table="secret", name="beta~secret")
    )
    answer = await http.request(method, filled, auth=ACME)

    said = answer.text.replace(filled, "").replace("client_secret", "").replace("beta.secret", "")
    assert "secret" not in said
    if path in OPEN:
        return
    if (method, path) in FOR_TENANTS:
        assert answer.status_code in (200, 204, 404, 406)
    else:
        assert answer.status_code == 403
        assert "Iceberg catalog alone" in answer.text or method == "HEAD"


async def test_a_user_of_a_tenant_that_is_not_known_is_refused(http: httpx.AsyncClient) -> None:
    assert await status(http, httpx.BasicAuth("gone~ann", PASSWORD), "namespaces") == 401


async def test_a_token_of_the_catalog_keeps_its_tenant(http: httpx.AsyncClient) -> None:
    form = {"grant_type": "client_credentials", "client_id": "acme~alice", "client_secret": PASSWORD}
    token = (await http.post("/iceberg/v1/oauth/tokens", data=form)).json()["access_token"]
    bearer = {"Authorization": f"Bearer {token}"}
    answer = await http.get("/iceberg/v1/namespaces", headers=bearer)
    assert answer.json()["namespaces"] == [["acme"]]
    assert (await http.get("/v1/topics", headers=bearer)).status_code == 403


@pytest.mark.parametrize("name", ["topics", "tidelog"])
async def test_no_tenant_takes_a_name_that_tables_have(module_database_url: str, name: str) -> None:
    async with opened(module_database_url) as sequencer:
        with pytest.raises(InvalidTenantName):
            await sequencer.tenants.create(name, [], TenantLimits())
