"""Odd names in every place of every HTTP route, sent as raw bytes: by a tenant's user, and by an operator."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote

import pytest
import pytest_asyncio

from agent.http.access import CHECKS
from agent.security.sasl.settings import SaslSettings
from tests.agent.http.test_iceberg import published
from tests.agent.running import Running, until_answered
from tests.agent.tenants.test_tables_of_tenants import store_of
from tests.agent.tenants.two_tenants import PASSWORD, opened, tenants_agent

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = SaslSettings(sasl_mechanisms="PLAIN", http_authentication=True, sasl_failed_delay_ms=0)
SECRET = "hidden-of-beta"
NAMES = [
    ".",
    "..",
    "%2e%2e",
    "..%2f..%2fbeta~" + SECRET,
    "%2f",
    "%252f",
    "beta%7E" + SECRET,
    "~" + SECRET,
    "beta~",
    quote("🦆"),
    quote("ｂeta~" + SECRET),
    "%ff%fe",
    "%ed%a0%80",
    "%00",
    "a%00b",
    "x" * 255,
    "x" * 20_000,
    "%0d%0aSet-Cookie:%20a=b",
    "'%20OR%201=1--",
    "%27%3B%20DROP%20TABLE%20topics%3B--",
    "%25",
    "*",
    "%5C..%5C",
    "%u002e",
    "acme%1Fown",
    "__tidelog_audit",
]
ROUTES = [(method, path) for method, path in CHECKS if path not in ("/metrics", "/live", "/ready")]
QUERIES = ["pageToken", "pageSize", "parent", "snapshots", "after", "limit", "from", "partition", "x"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    async with tenants_agent(module_database_url, sasl_settings=SETTINGS) as started:
        async with opened(module_database_url) as sequencer:
            cluster = started.app._settings.cluster
            await sequencer.ownership.ratchet(store_of(started), cluster, ratchet_s=600.0)
            for name in ("acme~own", "beta~" + SECRET):
                await published(sequencer, store_of(started), name)

        async def is_ready() -> bool:
            [answer] = await asked(started, "", [("GET", "/ready", b"")])
            return answer[0] == 200

        await until_answered(is_ready)
        yield started


async def asked(
    agent: Running, user: str, requests: Sequence[tuple[str, str, bytes]]
) -> list[tuple[int, list[bytes], bytes]]:
    """Sends method, target and body one after the other. Returns status, headers and body of each answer."""
    login = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.app.http_port)
    answers = []
    for method, target, body in requests:
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {login}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        async with asyncio.timeout(60):
            status = int((await reader.readline()).split()[1])
            headers = []
            while (line := await reader.readline()).strip():
                headers.append(line.strip())
            lengths = [
                int(line.split(b":")[1]) for line in headers if line.lower().startswith(b"content-length")
            ]
            content = b"" if method == "HEAD" or status == 204 else await reader.readexactly(sum(lengths))
        answers.append((status, headers, content))
    writer.close()
    return answers


def targets() -> list[tuple[str, str, bytes]]:
    found = []
    for method, template in ROUTES:
        body = b"" if method in ("GET", "HEAD", "DELETE") else b'{"name": "x", "\\ud800": "\\u0000"}'
        for name in NAMES:
            path = template.replace("{refused:path}", name)
            if "{" in template:
                for namespace in ("acme", name):
                    target = path.replace("{namespace}", namespace)
                    found.append((method, target.replace("{table}", name).replace("{name}", name), body))
            named = json.dumps({"name": name, "partitions": 1}).encode() if body else b""
            plain = template.replace("{namespace}", "acme").replace("{table}", "own").replace("{name}", "own")
            plain = plain.replace("{refused:path}", "x")
            found += [
                (method, f"{plain}?{query}={name}", named) for query in QUERIES[:: 1 if not body else 4]
            ]
    return found


@pytest.mark.parametrize("user", ["acme~alice", "root"])
async def test_no_odd_name_breaks_a_route_or_leads_out_of_the_tenant(agent: Running, user: str) -> None:
    requests = [one for one in targets() if user != "root" or one[0] in ("GET", "HEAD")]

    answers = await asked(agent, user, requests)

    for request, (status, headers, content) in zip(requests, answers, strict=True):
        what = f"{user} {request[0]} {request[1][:300]} {request[2][:100]!r}: {status} {content[:300]!r}"
        assert status < 500, what
        assert not [line for line in headers if line.lower().startswith(b"set-cookie")], what
        if content:
            json.loads(content)
        if user != "root":
            assert status != 200 or SECRET.encode() not in content, what
            assert status in (200, 204, 304) or b"beta~" not in content or b"beta" in request[1].encode(), (
                what
            )
