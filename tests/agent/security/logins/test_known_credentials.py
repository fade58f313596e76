"""What an agent knows of users by heart, and how long."""

import asyncio

import psycopg
import pytest

from agent.security.logins.known_credentials import KnownCredentials
from agent.security.logins.logins import PasswordLogin, ScramLogin
from agent.security.logins.passwords import Passwords
from agent.security.sasl.settings import SaslSettings
from agent.security.sasl.steps import CannotCheck, Challenge, SaslRefused
from sequencer.client import Sequencer, SequencerSettings
from sequencer.security.credentials import CHANGES_KEPT, PER_PAGE, CredentialKey, ScramMechanism
from tests.agent.security.logins.users import keys_for
from tests.agent.security.sasl.test_scram import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")
ANN = CredentialKey("ann", ScramMechanism.SHA_256)
SETTINGS = SaslSettings(sasl_credentials_cache_s=5, sasl_credentials_cached=3)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


async def opened(url: str) -> tuple[Sequencer, KnownCredentials, Clock]:
    clock = Clock()
    sequencer = await Sequencer.open(url, SequencerSettings())
    return sequencer, KnownCredentials(sequencer.user_credentials, SETTINGS, clock), clock


def rewrite(url: str, statement: str) -> None:
    """Changes rows behind the back of the numbers, to see what is answered from memory."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


async def test_a_user_is_looked_up_once_while_looks_for_changes_succeed(module_database_url: str) -> None:
    sequencer, known, clock = await opened(module_database_url)
    await sequencer.user_credentials.alter([(ANN, keys_for(ANN.mechanism, "one"))])
    await known.notice_changes()
    first = await known.of("ann")
    rewrite(module_database_url, "UPDATE user_credentials SET iterations = 9999")

    for _ in range(5):
        clock.now_s += 4
        await known.notice_changes()
        assert await known.of("ann") == first
    clock.now_s += 6  # no look succeeded meanwhile
    assert (await known.of("ann"))[0].keys.iterations == 9_999
    await sequencer.close()


async def test_a_change_a_new_user_and_a_deletion_are_noticed(module_database_url: str) -> None:
    sequencer, known, _ = await opened(module_database_url)
    deleted: list[CredentialKey] = []
    known.on_deleted = deleted.extend
    new = CredentialKey("new", ScramMechanism.SHA_512)
    await known.notice_changes()
    assert await known.of("new") == ()

    await sequencer.user_credentials.alter([(new, keys_for(new.mechanism, "one"))])
    await known.notice_changes()
    [credential] = await known.of("new")
    assert credential.key == new

    await sequencer.user_credentials.alter((), [new])
    await known.notice_changes()
    assert await known.of("new") == ()
    assert deleted == [new]
    await sequencer.close()


async def test_invented_names_push_no_user_out_and_take_bounded_memory(module_database_url: str) -> None:
    sequencer, known, _ = await opened(module_database_url)
    await sequencer.user_credentials.alter([(ANN, keys_for(ANN.mechanism, "one"))])
    await known.notice_changes()
    await known.of("ann")
    for number in range(20):
        await known.of(f"invented {number}")
    await known.of("x" * 100_000)
    rewrite(module_database_url, "UPDATE user_credentials SET iterations = 8888 WHERE user_name = 'ann'")

    assert (await known.of("ann"))[0].keys.iterations != 8_888
    assert len(known._strangers) == SETTINGS.sasl_credentials_cached
    await sequencer.close()


async def test_a_lookup_that_a_change_overtook_is_not_kept(module_database_url: str) -> None:
    sequencer, known, _ = await opened(module_database_url)
    await sequencer.user_credentials.alter([(ANN, keys_for(ANN.mechanism, "one"))])
    await known.notice_changes()
    ask, may_answer = known._credentials.of, asyncio.Event()

    async def late(users: list[str]) -> object:
        found = await ask(users)
        await may_answer.wait()
        return found

    known._ask = late  # type: ignore[method-assign,assignment]
    known._lookups._ask = late  # type: ignore[assignment]
    asking = asyncio.create_task(known.of("ann"))
    await asyncio.sleep(0.2)
    await sequencer.user_credentials.alter((), [ANN])
    await known.notice_changes()
    may_answer.set()
    await asking

    assert await known.of("ann") == ()
    await sequencer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_without_postgres_a_login_can_not_be_checked(mechanism: str) -> None:
    settings = SequencerSettings(database_connect_timeout_s=2)
    sequencer = await Sequencer.open("postgresql://nobody@127.0.0.1:1/none", settings)
    known, passwords = KnownCredentials(sequencer.user_credentials, SETTINGS, Clock()), Passwords(SETTINGS)
    login = (
        PasswordLogin(known, passwords, 4_096, "host")
        if mechanism == "PLAIN"
        else ScramLogin(ScramMechanism.SHA_256, known, 4_096)
    )

    with pytest.raises(CannotCheck):
        await login.step(b"\0ann\0secret" if mechanism == "PLAIN" else b"n,,n=ann,r=abc")
    passwords.close()
    await sequencer.close()


async def test_deletions_around_a_fail_over_are_noticed(module_database_url: str) -> None:
    """Of more users than a page has, so that none is left out."""
    sequencer, known, _ = await opened(module_database_url)
    users = [CredentialKey(f"user {number}", ScramMechanism.SHA_256) for number in range(PER_PAGE + 1)]
    keys = keys_for(ScramMechanism.SHA_256, "one")
    await sequencer.user_credentials.alter([(user, keys) for user in users])
    deleted: list[CredentialKey] = []
    known.on_deleted, known.in_use = deleted.extend, lambda: set(users)
    await known.notice_changes()
    assert deleted == []

    await sequencer.user_credentials.alter((), users[:2])
    known.forget_all()
    await sequencer.user_credentials.alter((), users[2:4])
    await known.notice_changes()

    assert set(deleted) == set(users[:4])
    await sequencer.close()


async def test_a_deletion_that_the_sequencer_forgot_is_noticed(module_database_url: str) -> None:
    sequencer, known, _ = await opened(module_database_url)
    await sequencer.user_credentials.alter([(ANN, keys_for(ANN.mechanism, "one"))])
    deleted: list[CredentialKey] = []
    known.on_deleted, known.in_use = deleted.extend, lambda: {ANN}
    await known.notice_changes()

    await sequencer.user_credentials.alter((), [ANN])
    rewrite(
        module_database_url, f"UPDATE security SET credential_changes = credential_changes + {CHANGES_KEPT}"
    )
    other = CredentialKey("other", ScramMechanism.SHA_256)
    await sequencer.user_credentials.alter([(other, keys_for(other.mechanism, "one"))])
    await known.notice_changes()

    assert deleted == [ANN]
    await sequencer.close()


async def test_a_fail_over_during_the_look_repeats_it(module_database_url: str) -> None:
    sequencer, known, _ = await opened(module_database_url)
    deleted: list[CredentialKey] = []
    gone = CredentialKey("gone", ScramMechanism.SHA_256)
    known.on_deleted = deleted.extend

    def fails_over_once() -> set[CredentialKey]:
        known.in_use = lambda: {gone}
        known.forget_all()
        return {gone}

    known.in_use = fails_over_once
    await known.notice_changes()
    assert deleted == []

    await known.notice_changes()
    assert deleted == [gone]
    await sequencer.close()


async def test_a_login_that_a_deletion_overtook_at_its_last_lookup_is_refused(
    module_database_url: str,
) -> None:
    """Its lookup is answered before the deletion, and the agent hears of the deletion before the answer."""
    sequencer, known, _ = await opened(module_database_url)
    await sequencer.user_credentials.alter([(ANN, keys_for(ANN.mechanism, "secret"))])
    login = ScramLogin(ScramMechanism.SHA_256, known, 4_096)
    client = Client("SCRAM-SHA-256", "ann", "secret")  # type: ignore[arg-type]
    challenge = await login.step(client.first())
    assert isinstance(challenge, Challenge)
    ask, is_asked, may_answer = known._credentials.of, asyncio.Event(), asyncio.Event()

    async def late(users: list[str]) -> object:
        found = await ask(users)
        is_asked.set()
        await may_answer.wait()
        return found

    known.forget_all()
    await known.notice_changes()
    known._lookups._ask = late  # type: ignore[assignment]
    proving = asyncio.create_task(login.step(client.final(challenge.data)))
    await is_asked.wait()
    await sequencer.user_credentials.alter((), [ANN])
    await known.notice_changes()
    may_answer.set()

    with pytest.raises(SaslRefused):
        await proving
    await sequencer.close()
