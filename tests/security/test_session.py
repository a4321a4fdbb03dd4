"""The states of one connection's session, and what it admits in each."""

import json
import math
import time

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.config import SaslMechanism, SaslSettings
from kafscale.security.exchanges import Challenge, DeriveKey, Granted, Refused, SaslExchange, plain, scram
from kafscale.security.oauthbearer import TokenPolicy, oauthbearer, parse_key_set
from kafscale.security.session import EXCHANGE_MAX_COUNT, Moment, SaslAnswer, SaslSession, State
from kafscale.security.verifiers import salt_password
from kafscale.wire.error_codes import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
)
from tests.devtools.processes.sasl import (
    ALICE,
    PASSWORD,
    Users,
    key_set,
    oauth_message,
    plain_message,
    scram_client,
    sign,
    signing_key,
)

PRODUCE, METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 0, 3, 17, 18, 36
BEFORE = {HANDSHAKE, API_VERSIONS, AUTHENTICATE}
ALL = {PRODUCE, METADATA, *BEFORE}
SHA_256, SHA_512, PLAIN, OAUTHBEARER = SaslMechanism
START = Moment(100.0, 1_000_000)
KEYS = parse_key_set(json.dumps(key_set(signing_key())).encode())


def later(seconds):
    return Moment(START.seconds + seconds, START.unix_ms + int(seconds * 1000))


def session_of(users=None, **given):
    users = users or Users({ALICE: PASSWORD, "bob": "bob's"})

    def make_exchange(mechanism):
        if mechanism is PLAIN:
            return SaslExchange(plain(users))
        if mechanism is OAUTHBEARER:
            return SaslExchange(oauthbearer(TokenPolicy(SaslSettings()), lambda: KEYS))
        return SaslExchange(scram(mechanism, users))

    return SaslSession(mechanisms=tuple(SaslMechanism), make_exchange=make_exchange, **given)


def authenticate(session, data, now=START):
    step = session.authenticate(data, now)
    while isinstance(step, DeriveKey):
        step = session.resume(salt_password(step.mechanism, step.password, step.salt, step.iterations), now)
    assert isinstance(step, SaslAnswer)
    return step


def login(session, now=START, user=ALICE, password=PASSWORD):
    assert session.handshake(1, "PLAIN", now) == NONE
    return authenticate(session, plain_message(user, password), now)


def admitted(session, now=START):
    return {key for key in ALL if session.admits(key, now.seconds)}


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_session_admits_all_requests_only_after_scram_completes(mechanism):
    session, client = session_of(), scram_client(mechanism)
    assert admitted(session) == BEFORE
    assert session.handshake(1, mechanism.value, START) == NONE
    assert admitted(session) == BEFORE
    client.set_server_first(authenticate(session, client.get_client_first().encode()).data.decode())
    assert admitted(session) == BEFORE
    answer = authenticate(session, client.get_client_final().encode())
    client.set_server_final(answer.data.decode())
    assert str(session.principal) == "User:alice"
    assert session.state is State.AUTHENTICATED
    assert admitted(session, later(10**6)) == ALL


def test_plain():
    session = session_of()
    answer = login(session)
    assert (answer.error_code, answer.session_lifetime_ms, session.ends_at) == (NONE, 0, math.inf)
    assert str(session.principal) == "User:alice"


def test_a_login_that_failed_admits_nothing_any_more():
    session = session_of()
    assert login(session, password="wrong").error_code == SASL_AUTHENTICATION_FAILED
    assert session.state is State.FAILED
    assert "wrong password" in session.failure
    assert admitted(session) == set()
    assert session.handshake(1, "PLAIN", START) == ILLEGAL_SASL_STATE
    assert authenticate(session, plain_message()).error_code == ILLEGAL_SASL_STATE
    assert not session.is_authenticated


def test_a_wrong_scram_proof_gets_kafkas_error_message():
    session, client = session_of(), scram_client(SHA_256, password="wrong")
    session.handshake(1, "SCRAM-SHA-256", START)
    client.set_server_first(authenticate(session, client.get_client_first().encode()).data.decode())
    assert authenticate(session, client.get_client_final().encode()).message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    )


@pytest.mark.parametrize("name", ["GSSAPI", "", "plain", "SCRAM-SHA-256-PLUS", "PLAIN"])
def test_mechanisms_that_are_not_enabled_or_do_not_exist(name):
    session = attrs.evolve(session_of(), mechanisms=(SHA_512,))
    assert session.handshake(1, name, START) == UNSUPPORTED_SASL_MECHANISM
    assert session.state is State.FAILED


def test_the_handshake_of_clients_that_send_tokens_without_requests():
    session = session_of()
    assert session.handshake(0, "PLAIN", START) == UNSUPPORTED_VERSION
    assert session.state is State.FAILED


def test_a_token_without_a_handshake():
    session = session_of()
    assert authenticate(session, plain_message()).error_code == ILLEGAL_SASL_STATE
    assert session.state is State.FAILED


def test_a_second_handshake_within_the_exchange():
    session = session_of()
    session.handshake(1, "SCRAM-SHA-256", START)
    assert session.handshake(1, "PLAIN", START) == ILLEGAL_SASL_STATE
    assert session.state is State.FAILED


def test_sasl_after_the_login_is_out_of_order_and_ends_nothing():
    session = session_of()
    login(session)
    assert session.handshake(1, "PLAIN", later(5)) == ILLEGAL_SASL_STATE
    assert authenticate(session, plain_message(), later(5)).error_code == ILLEGAL_SASL_STATE
    assert session.failure is None
    assert PRODUCE in admitted(session)


def test_an_exchange_without_an_end():
    session = SaslSession(mechanisms=(SHA_256,), make_exchange=lambda _: Scripted())
    session.handshake(1, "SCRAM-SHA-256", START)
    codes = [authenticate(session, b"more").error_code for _ in range(EXCHANGE_MAX_COUNT + 1)]
    assert codes == [NONE] * EXCHANGE_MAX_COUNT + [SASL_AUTHENTICATION_FAILED]


# ---- sessions with an end (KIP-368) ----------------------------------------------------------------------------------


def test_an_expired_session_admits_only_a_new_login():
    session = session_of(max_session_ms=60_000)
    assert login(session).session_lifetime_ms == 60_000
    assert admitted(session, later(59)) == ALL
    assert admitted(session, later(60)) == {HANDSHAKE, AUTHENTICATE}


def test_a_new_login_makes_the_session_go_on():
    session = session_of(max_session_ms=60_000)
    login(session)
    assert session.handshake(1, "PLAIN", later(50)) == NONE
    assert PRODUCE in admitted(session, later(50))
    assert PRODUCE not in admitted(session, later(60))
    assert authenticate(session, plain_message(), later(55)).session_lifetime_ms == 60_000
    assert PRODUCE in admitted(session, later(114))


def test_a_new_login_is_possible_after_the_end():
    session = session_of(max_session_ms=1_000)
    login(session)
    assert login(session, later(30)).error_code == NONE
    assert PRODUCE in admitted(session, later(30))


def test_reauthentication_as_another_user_is_refused():
    session = session_of(max_session_ms=60_000)
    login(session)
    answer = login(session, later(10), "bob", "bob's")
    assert answer.error_code == SASL_AUTHENTICATION_FAILED
    assert answer.message == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert str(session.principal) == "User:alice"
    assert admitted(session, later(10)) == set()


def test_a_new_login_by_another_mechanism():
    session = session_of(max_session_ms=60_000)
    login(session)
    assert session.handshake(1, "SCRAM-SHA-256", later(10)) == NONE  # as in Kafka, told when the exchange begins
    answer = authenticate(session, b"anything", later(10))
    assert answer.error_code == SASL_AUTHENTICATION_FAILED
    assert "'SCRAM-SHA-256' requested by client is not supported for re-authentication" in answer.message


def test_reauthentication_of_a_removed_user_is_refused():
    users = Users()
    session = session_of(users, max_session_ms=60_000)
    login(session)
    users.passwords.clear()
    assert login(session, later(10)).error_code == SASL_AUTHENTICATION_FAILED
    assert admitted(session, later(10)) == set()


def test_new_logins_at_once_are_too_many():
    session = session_of(max_session_ms=60_000)
    login(session)
    assert login(session, later(1)).error_code == NONE
    assert session.handshake(1, "PLAIN", later(1.5)) == ILLEGAL_SASL_STATE
    assert session.failure is None
    assert login(session, later(2.5)).error_code == NONE


@pytest.mark.parametrize(("max_session_ms", "lifetime_seconds"), [(0, 300), (60_000, 60), (900_000, 300)])
def test_a_token_ends_a_session(max_session_ms, lifetime_seconds):
    session, now = session_of(max_session_ms=max_session_ms), Moment(0.0, int(time.time() * 1000))
    session.handshake(1, "OAUTHBEARER", now)
    answer = authenticate(session, oauth_message(sign(lifetime_seconds=300)), now)
    assert abs(answer.session_lifetime_ms / 1000 - lifetime_seconds) < 3
    assert session.ends_at == answer.session_lifetime_ms / 1000


def test_a_token_that_has_expired_within_the_skew_of_clocks_gives_no_time():
    session, now = session_of(), Moment(0.0, int(time.time() * 1000))
    session.handshake(1, "OAUTHBEARER", now)
    answer = authenticate(session, oauth_message(sign(lifetime_seconds=-10)), now)
    assert (answer.error_code, answer.session_lifetime_ms) == (NONE, 0)
    assert admitted(session, now) == {HANDSHAKE, AUTHENTICATE}


# ---- any order of messages -------------------------------------------------------------------------------------------


class Scripted:
    """An exchange whose outcomes are what it is sent."""

    def send(self, data, now_ms):
        if data == b"derive":
            return DeriveKey(SHA_256, b"", b"", 1)
        if data.startswith(b"grant"):
            return Granted(data.decode(), b"granted")
        return Challenge(b"more") if data == b"more" else Refused("no")


MESSAGES = st.one_of(
    st.tuples(st.sampled_from([0, 1, 1, 1]), st.sampled_from(["PLAIN", "SCRAM-SHA-256", "GSSAPI"])),
    st.tuples(st.just(None), st.sampled_from([b"more", b"grant a", b"grant b", b"derive", b"no"])),
    st.tuples(st.just(None), st.floats(0, 100)),
)


@settings(max_examples=300)
@given(st.lists(MESSAGES, max_size=12), st.sampled_from([0, 60_000]))
def test_any_message_sequence_admits_only_authenticated_sessions(messages, max_session_ms):
    """Only who was granted is admitted; who that is never changes; what has failed stays so."""
    session = SaslSession(
        mechanisms=(PLAIN, SHA_256), make_exchange=lambda _: Scripted(), max_session_ms=max_session_ms
    )
    now, granted = START, set()
    for version, what in messages:
        had_failed, error_code = session.failure is not None, None
        if isinstance(what, float):
            now = Moment(now.seconds + what, now.unix_ms + int(what * 1000))
        elif isinstance(what, str):
            error_code = session.handshake(version, what, now)
        else:
            step = session.authenticate(what, now)
            if isinstance(step, DeriveKey):
                step = session.resume(b"grant a", now)
            error_code = step.error_code
            if step.data == b"granted":
                granted.add(str(session.principal))
        assert {str(session.principal)} == granted or (session.principal is None and not granted)
        assert (session.state is State.FAILED) == (session.failure is not None)
        if had_failed:
            assert session.state is State.FAILED
            assert error_code in (None, ILLEGAL_SASL_STATE)
        is_allowed = bool(granted) and session.failure is None and now.seconds < session.ends_at
        assert session.admits(PRODUCE, now.seconds) == is_allowed
        assert (session.ends_at < math.inf) == bool(granted and max_session_ms)
