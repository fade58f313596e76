"""What a connection of a SASL listener gets, frame by frame, over a running agent."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from agent.security.audit.settings import AuditSettings
from agent.security.sasl.settings import SaslSettings
from tests.agent.read_path.wire import request
from tests.agent.running import Running, Wire, a_metadata, a_produce, running, until_answered
from tests.agent.security.logins.by_hand import authenticate, handshake, log_in, plain, send_raw
from tests.agent.security.logins.users import add_user, remove_user
from tests.agent.security.sasl.test_scram import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALL = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    await add_user(module_database_url, "ann", "secret")
    settings = SaslSettings(sasl_mechanisms=ALL, sasl_failed_delay_ms=10, sasl_failed_delay_max_ms=20)
    audit = AuditSettings(audit_refusals_per_s=1_000, audit_refusals_of_host_per_s=1_000)
    async with running(module_database_url, sasl_settings=settings, audit=audit) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def wire(agent: Running) -> AsyncIterator[Wire]:
    connected = await Wire.connect(agent.app.kafka_port)
    yield connected
    connected.close()


def versions() -> object:
    return request(18, 0)


async def test_api_versions_and_the_handshake_are_answered_before_a_login(wire: Wire) -> None:
    assert (await wire.ask(versions())).error_code == ErrorCode.none
    answer = await wire.ask(handshake("SCRAM-SHA-512"))

    assert answer.error_code == ErrorCode.none
    assert answer.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    "payload", [a_metadata("t"), a_produce("t", {0: b""}), authenticate(b"\0ann\0secret")]
)
async def test_other_requests_before_a_login_close_the_connection(wire: Wire, payload: object) -> None:
    await wire.send(payload)

    assert await wire.is_closed_by_agent()


async def test_other_requests_between_the_handshake_and_the_proof_close_the_connection(wire: Wire) -> None:
    await wire.ask(handshake())
    await wire.send(a_metadata("t"))

    assert await wire.is_closed_by_agent()


async def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are(wire: Wire) -> None:
    answer = await wire.ask(handshake("GSSAPI"))

    assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
    assert "PLAIN" in answer.mechanisms
    assert await wire.is_closed_by_agent()


@pytest.mark.parametrize("mechanism", ALL.split(","))
async def test_a_login_opens_the_connection(wire: Wire, mechanism: str) -> None:
    answer = await log_in(wire, "ann", "secret", mechanism)

    assert answer.error_code == ErrorCode.none
    assert (await wire.ask(a_metadata("t"))).topics


async def test_requests_sent_before_the_answer_to_the_proof_wait_for_it(wire: Wire) -> None:
    """As in Kafka. A client that does so trusts its password."""
    sent = [
        await wire.send(handshake()),
        await wire.send(authenticate(plain("ann", "secret"))),
        await wire.send(a_metadata("t")),
    ]

    answers = [await wire.receive(one) for one in sent]

    assert answers[1].error_code == ErrorCode.none
    assert answers[2].topics


async def test_a_failed_login_is_answered_once_and_the_connection_closed(wire: Wire) -> None:
    await wire.send(handshake())
    sent = await wire.send(authenticate(plain("ann", "wrong")))
    await wire.send(authenticate(plain("ann", "secret")))  # a second guess on the same connection

    await wire.receive_frame()
    answer = await wire.receive(sent)

    assert answer.error_code == ErrorCode.sasl_authentication_failed
    assert answer.auth_bytes == b""
    assert await wire.is_closed_by_agent()


@pytest.mark.parametrize("mechanism", ALL.split(","))
async def test_a_stranger_and_a_wrong_password_get_the_same_bytes(agent: Running, mechanism: str) -> None:
    answers = []
    for user in ("ann", "nobody"):
        wire = await Wire.connect(agent.app.kafka_port)
        answers.append(await log_in(wire, user, "wrong", mechanism))
        assert await wire.is_closed_by_agent()
        wire.close()

    assert answers[0] == answers[1]
    assert answers[0].error_code == ErrorCode.sasl_authentication_failed


async def test_an_old_client_sends_its_messages_without_headers(wire: Wire) -> None:
    client = Client("SCRAM-SHA-256", "ann", "secret")  # type: ignore[arg-type]
    assert (await wire.ask(handshake("SCRAM-SHA-256", version=0))).error_code == ErrorCode.none

    await send_raw(wire, client.first())
    await send_raw(wire, client.final(await wire.receive_frame()))

    assert await wire.receive_frame() == client.expected
    assert (await wire.ask(a_metadata("t"))).topics


async def test_an_old_client_with_a_wrong_password_is_hung_up_on(wire: Wire) -> None:
    await wire.ask(handshake("PLAIN", version=0))
    await send_raw(wire, plain("ann", "wrong"))

    assert await wire.is_closed_by_agent()


async def test_an_old_client_with_plain_gets_an_empty_answer(wire: Wire) -> None:
    await wire.ask(handshake("PLAIN", version=0))
    await send_raw(wire, plain("ann", "secret"))

    assert await wire.receive_frame() == b""
    assert (await wire.ask(a_metadata("t"))).topics


async def test_a_frame_over_kafkas_limit_closes_the_connection_before_its_body(wire: Wire) -> None:
    wire.writer.write((524_289).to_bytes(4, "big"))

    assert await wire.is_closed_by_agent()


async def test_the_limit_is_the_listeners_after_the_login(wire: Wire) -> None:
    await log_in(wire, "ann", "secret")
    large = await wire.ask(a_produce("t", {0: None}, transactional_id="x" * 32_000))
    wire.writer.write((104_857_601).to_bytes(4, "big"))

    assert large.responses
    assert await wire.is_closed_by_agent()


async def test_sasl_after_the_login_is_out_of_turn(wire: Wire) -> None:
    await log_in(wire, "ann", "secret")

    assert (await wire.ask(handshake())).error_code == ErrorCode.illegal_sasl_state
    assert (await wire.ask(authenticate(b""))).error_code == ErrorCode.illegal_sasl_state
    assert (await wire.ask(a_metadata("t"))).topics


async def test_a_deleted_users_connection_ends(agent: Running, module_database_url: str) -> None:
    await add_user(module_database_url, "temp", "secret")
    wire = await Wire.connect(agent.app.kafka_port)
    await log_in(wire, "temp", "secret", "SCRAM-SHA-512")

    await remove_user(module_database_url, "temp")

    assert await wire.is_closed_by_agent()
    again = await Wire.connect(agent.app.kafka_port)
    assert (await log_in(again, "temp", "secret")).error_code == ErrorCode.sasl_authentication_failed
    wire.close()
    again.close()


async def is_refused(agent: Running, user: str, password: str) -> bool:
    wire = await Wire.connect(agent.app.kafka_port)
    code = (await log_in(wire, user, password)).error_code
    wire.close()
    return bool(code == ErrorCode.sasl_authentication_failed)


@pytest.mark.parametrize("change", ["removed", "changed", "removed and set again"])
async def test_a_login_that_began_before_its_user_changed_fails(
    agent: Running, module_database_url: str, change: str
) -> None:
    await add_user(module_database_url, "eve", "old")
    wire = await Wire.connect(agent.app.kafka_port)
    await wire.ask(handshake("SCRAM-SHA-256"))
    client = Client("SCRAM-SHA-256", "eve", "old")  # type: ignore[arg-type]
    challenged = await wire.ask(authenticate(client.first()))
    if change != "changed":
        await remove_user(module_database_url, "eve")
    if change != "removed":
        await add_user(module_database_url, "eve", "new")
    await until_answered(lambda: is_refused(agent, "eve", "old"))

    answer = await wire.ask(authenticate(client.final(challenged.auth_bytes)))

    assert answer.error_code == ErrorCode.sasl_authentication_failed
    assert await wire.is_closed_by_agent()
    wire.close()


async def test_a_password_check_that_queues_while_its_user_is_removed_fails(
    agent: Running, module_database_url: str
) -> None:
    await add_user(module_database_url, "fay", "secret")
    passwords = agent.app._reached.assembly.parts.authentication.passwords  # type: ignore[union-attr]
    may_check, wire = threading.Event(), await Wire.connect(agent.app.kafka_port)
    await wire.ask(handshake())
    blocked = asyncio.create_task(passwords._threads.run(may_check.wait))
    checks = passwords.checks
    sent = await wire.send(authenticate(plain("fay", "secret")))

    async def queues() -> bool:
        return bool(passwords.checks > checks)

    await until_answered(queues)
    await remove_user(module_database_url, "fay")
    known = agent.app._reached.assembly.parts.authentication.known  # type: ignore[union-attr]

    async def is_noticed() -> bool:
        return await known.of("fay") == ()

    await until_answered(is_noticed)
    may_check.set()
    await blocked

    assert (await wire.receive(sent)).error_code == ErrorCode.sasl_authentication_failed
    wire.close()


async def test_a_user_removed_around_a_fail_over_is_hung_up_on(
    agent: Running, module_database_url: str
) -> None:
    await add_user(module_database_url, "gil", "secret")
    removed, stays = [await Wire.connect(agent.app.kafka_port) for _ in range(2)]
    await log_in(removed, "gil", "secret")
    await log_in(stays, "ann", "secret")

    await remove_user(module_database_url, "gil")
    agent.app._reached.assembly.parts.authentication.known.forget_all()  # type: ignore[union-attr]

    assert await removed.is_closed_by_agent()
    assert (await stays.ask(a_metadata("t"))).topics
    removed.close()
    stays.close()


async def test_a_changed_password_counts_within_a_poll(agent: Running, module_database_url: str) -> None:
    await add_user(module_database_url, "cho", "old")
    for_old = await Wire.connect(agent.app.kafka_port)
    assert (await log_in(for_old, "cho", "old")).error_code == ErrorCode.none
    await add_user(module_database_url, "cho", "new")

    async def accepts_new() -> bool:
        wire = await Wire.connect(agent.app.kafka_port)
        code = (await log_in(wire, "cho", "new")).error_code
        wire.close()
        return bool(code == ErrorCode.none)

    await until_answered(accepts_new)
    wire = await Wire.connect(agent.app.kafka_port)
    assert (await log_in(wire, "cho", "old")).error_code == ErrorCode.sasl_authentication_failed
    assert (await for_old.ask(a_metadata("t"))).topics  # as in Kafka: until it must authenticate again
    for_old.close()
    wire.close()


async def test_the_same_password_takes_no_thread_twice(agent: Running, module_database_url: str) -> None:
    await add_user(module_database_url, "dan", "secret")
    passwords = agent.app._reached.assembly.parts.authentication.passwords  # type: ignore[union-attr]
    for _ in range(2):
        wire = await Wire.connect(agent.app.kafka_port)
        await log_in(wire, "dan", "secret")
        wire.close()
    checks = passwords.checks

    wire = await Wire.connect(agent.app.kafka_port)
    assert (await log_in(wire, "dan", "secret")).error_code == ErrorCode.none
    assert passwords.checks == checks
    wire.close()
    wire = await Wire.connect(agent.app.kafka_port)
    assert (await log_in(wire, "dan", "wrong")).error_code == ErrorCode.sasl_authentication_failed
    assert passwords.checks == checks + 1
    wire.close()


async def test_no_secret_reaches_the_log(agent: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for mechanism, user, password in (
        ("PLAIN", "ann", "secret"),
        ("PLAIN", "ann", "hunter2-wrong"),
        ("SCRAM-SHA-256", "ann", "hunter2-wrong"),
    ):
        wire = await Wire.connect(agent.app.kafka_port)
        await log_in(wire, user, password, mechanism)
        wire.close()
    broken = await Wire.connect(agent.app.kafka_port)
    await broken.ask(handshake())
    await send_raw(broken, b"\x00\x24\x00\x02\x00\x00\x00\x01\xff\xff\x00\x7fhunter2-torn")
    assert await broken.is_closed_by_agent()
    broken.close()

    logged = [str(record.__dict__) for record in caplog.records]

    assert any("login failed" in line for line in logged)
    assert [line for line in logged if "hunter2" in line or "'secret'" in line] == []


async def test_listeners_without_sasl_answer_sasl_with_illegal_state(module_database_url: str) -> None:
    async with running(module_database_url) as open_agent:
        wire = await Wire.connect(open_agent.app.kafka_port)

        assert (await wire.ask(handshake())).error_code == ErrorCode.illegal_sasl_state
        assert (await wire.ask(a_metadata("t"))).topics
        wire.close()
