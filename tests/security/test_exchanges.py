"""SCRAM, PLAIN and OAUTHBEARER: logins that succeed, and all that must not."""

import json
import time
from types import SimpleNamespace

import pytest

from kafscale.config import SaslMechanism, SaslSettings
from kafscale.login.scram import load_scramp
from kafscale.security.exchanges import PLAIN_MESSAGE_MAX_BYTES as PLAIN_MAX_BYTES
from kafscale.security.exchanges import (
    SCRAM_MESSAGE_MAX_BYTES,
    Challenge,
    DeriveKey,
    FetchKeys,
    Granted,
    Refused,
    SaslExchange,
    plain,
    scram,
)
from kafscale.security.oauthbearer import MESSAGE_MAX_BYTES as OAUTH_MAX_BYTES
from kafscale.security.oauthbearer import NO_KEYS, TokenPolicy, oauthbearer, parse_key_set
from kafscale.security.verifiers import ITERATIONS_LEAST, make_verifier, salt_password
from tests.devtools.processes.sasl import (
    ALICE,
    PASSWORD,
    SCRAMS,
    Users,
    key_set,
    oauth_message,
    plain_message,
    scram_client,
    sign,
    signing_key,
)

SHA_256 = SaslMechanism.SCRAM_SHA_256
KEYS = parse_key_set(json.dumps(key_set(signing_key())).encode())


def now_ms():
    return int(time.time() * 1000)


def scram_exchange(mechanism=SHA_256, users=None):
    return SaslExchange(scram(mechanism, users or Users()))


def send(exchange, message):
    return exchange.send(message.encode(), 0)


def begin(exchange, client):
    challenge = send(exchange, client.get_client_first())
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.data.decode())
    return client.get_client_final()


# ---- SCRAM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_scram_by_the_right_password(mechanism):
    client, exchange = scram_client(mechanism), scram_exchange(mechanism)
    granted = send(exchange, begin(exchange, client))
    assert isinstance(granted, Granted)
    assert granted.name == ALICE
    client.set_server_final(granted.data.decode())  # raises if the broker does not know the user


@pytest.mark.parametrize("salt_bytes", [1, 4, 11])
def test_a_salt_shorter_than_12_bytes_is_accepted(salt_bytes):
    """Tools that move users bring their salts, and Kafka takes any; scramp refuses salts below 12 bytes."""
    short = make_verifier(SHA_256, PASSWORD, iterations=ITERATIONS_LEAST, salt=b"s" * salt_bytes)
    client = load_scramp().ScramClient([SHA_256.value], ALICE, PASSWORD)
    exchange = scram_exchange(users=SimpleNamespace(verifier=lambda *_: short, decoy=Users().decoy))
    granted = send(exchange, begin(exchange, client))
    assert isinstance(granted, Granted)
    client.set_server_final(granted.data.decode())


@pytest.mark.parametrize(("user", "password"), [(ALICE, "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_password_and_a_user_that_there_is_not_fail_at_the_same_message(user, password):
    exchange = scram_exchange()
    refused = send(exchange, begin(exchange, scram_client(SHA_256, user, password)))
    assert isinstance(refused, Refused)
    assert refused.message is None


def test_a_user_that_there_is_not_has_the_same_salt_each_time():
    challenges = [send(scram_exchange(), scram_client(SHA_256, "nobody").get_client_first()) for _ in range(2)]
    assert len({each.data.decode().split(",")[1] for each in challenges}) == 1


def test_names_with_commas_and_equals_signs():
    name = "CN=alice,O=Example"
    exchange = scram_exchange(users=Users({name: PASSWORD}))
    granted = send(exchange, begin(exchange, scram_client(SHA_256, name)))
    assert isinstance(granted, Granted)
    assert granted.name == name


def test_messages_that_were_recorded_are_of_no_use_again():
    client, exchange = scram_client(SHA_256), scram_exchange()
    first = client.get_client_first()
    client.set_server_first(send(exchange, first).data.decode())
    final = client.get_client_final()
    assert isinstance(send(exchange, final), Granted)
    assert isinstance(send(exchange, final), Refused)
    another = scram_exchange()
    assert isinstance(send(another, first), Challenge)
    assert isinstance(send(another, final), Refused)


def test_a_client_cannot_choose_the_scram_iterations():
    challenge = send(scram_exchange(), f"n,,n={ALICE},r=nonce,x=1")
    assert isinstance(challenge, Challenge)
    assert challenge.data.decode().endswith(f",i={ITERATIONS_LEAST}")
    assert isinstance(send(scram_exchange(), f"n,,n={ALICE},r=nonce,i=1"), Refused)


@pytest.mark.parametrize(
    "first",
    [
        "p=tls-unique,,n=alice,r=nonce",  # channel binding, which is not offered
        "p=tls-exporter,,n=alice,r=nonce",
        "x,,n=alice,r=nonce",
        "n,a=bob,n=alice,r=nonce",  # for somebody else
        "n,,m=must,n=alice,r=nonce",  # an extension that has to be understood
        "n,,n=alice",
        "n,,r=nonce,n=alice",
        "n,,n=,r=nonce",
        "n,,n=al=ice,r=nonce",
        "n,,n=alice,r=",
        "n,,n=alice,n=bob,r=nonce",
        "n,,n=alice\0,r=nonce",
        "n",
        "",
        "n,,n=" + "a" * SCRAM_MESSAGE_MAX_BYTES + ",r=nonce",
    ],
)
def test_first_messages_that_are_refused(first):
    assert isinstance(send(scram_exchange(), first), Refused)


def test_a_scram_message_that_is_not_utf_8_is_refused():
    assert isinstance(scram_exchange().send(b"\xff\xfe", 0), Refused)


def test_a_channel_binding_flag_that_is_changed_on_the_way_is_seen():
    client, exchange = scram_client(SHA_256), scram_exchange()
    client.set_server_first(send(exchange, client.get_client_first().replace("n,,", "y,,", 1)).data.decode())
    assert isinstance(send(exchange, client.get_client_final()), Refused)  # it says c=biws, which is n,,


@pytest.mark.parametrize("lacking", ["c=", "r=", "p="])
def test_final_messages_that_lack_something(lacking):
    exchange = scram_exchange()
    final = begin(exchange, scram_client(SHA_256))
    assert isinstance(send(exchange, ",".join(x for x in final.split(",") if not x.startswith(lacking))), Refused)


# ---- PLAIN -----------------------------------------------------------------------------------------------------------


class OnlySha256(Users):
    def verifier(self, mechanism, user):
        return super().verifier(mechanism, user) if mechanism is SHA_256 else None


def plain_login(message, users=None):
    exchange = SaslExchange(plain(users or Users()))
    outcome = exchange.send(message, 0)
    assert isinstance(outcome, DeriveKey)
    assert outcome.iterations >= ITERATIONS_LEAST
    assert PASSWORD not in repr(outcome)
    return exchange.send(salt_password(outcome.mechanism, outcome.password, outcome.salt, outcome.iterations), 0)


@pytest.mark.parametrize("users", [Users(), OnlySha256()], ids=["both", "sha-256"])
@pytest.mark.parametrize("authorization_id", ["", ALICE])
def test_plain_by_the_right_password(users, authorization_id):
    assert plain_login(plain_message(authorization_id=authorization_id), users) == Granted(ALICE)


def test_plain_derives_alike_for_users_that_there_are_and_others():
    """By the same mechanism, as the time that it takes tells which one it was."""
    known, unknown = (SaslExchange(plain(Users())).send(plain_message(user=user), 0) for user in (ALICE, "nobody"))
    assert known.mechanism is unknown.mechanism


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_plain_derives_with_the_usual_mechanism_for_an_unknown_user(mechanism):
    users = Users(usual_mechanism=mechanism)
    assert SaslExchange(plain(users)).send(plain_message(user="nobody"), 0).mechanism is mechanism


@pytest.mark.parametrize("message", [plain_message(password="wrong"), plain_message(user="nobody")])
def test_wrong_passwords_and_users_that_there_are_not_look_alike(message):
    refused = plain_login(message)
    assert isinstance(refused, Refused)
    assert refused.message == "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"alice", b"\0alice", b"\0\0secret", b"\0alice\0", b"\0alice\0secret\0more", b"\0alice\0\xff"),
        plain_message(password="x" * PLAIN_MAX_BYTES),
        plain_message(authorization_id="root"),
    ],
)
def test_plain_messages_that_are_refused_before_anything_is_derived(message):
    assert isinstance(SaslExchange(plain(Users())).send(message, 0), Refused)


# ---- OAUTHBEARER -----------------------------------------------------------------------------------------------------


def oauth_exchange(keys=KEYS):
    return SaslExchange(oauthbearer(TokenPolicy(SaslSettings()), lambda: keys))


@pytest.mark.parametrize("authorization_id", ["", ALICE])
def test_a_token(authorization_id):
    granted = oauth_exchange().send(oauth_message(sign(), authorization_id), now_ms())
    assert isinstance(granted, Granted)
    assert (granted.name, granted.data) == (ALICE, b"")
    assert granted.expires_at_ms > now_ms()


def test_extensions_are_read_and_have_no_effect():
    message = f"n,,\x01auth=Bearer {sign()}\x01traceId=7\x01more=a=b\x01\x01".encode()
    assert isinstance(oauth_exchange().send(message, now_ms()), Granted)


def test_a_refused_token_gets_an_error_challenge_before_the_failure():
    """RFC 7628, 3.2.3; Kafka's clients wait for the second answer, and no other token counts."""
    for second in (b"\x01", oauth_message(sign())):
        exchange = oauth_exchange()
        told = exchange.send(oauth_message(sign(lifetime_seconds=-100)), now_ms())
        assert told == Challenge(b'{"status":"invalid_token"}')
        refused = exchange.send(second, now_ms())
        assert isinstance(refused, Refused)
        assert refused.message == '{"status":"invalid_token"}'
        assert "expired" in refused.why


def test_an_unknown_signing_key_is_fetched_once():
    keys = NO_KEYS
    exchange = SaslExchange(oauthbearer(TokenPolicy(SaslSettings()), lambda: keys))
    assert isinstance(exchange.send(oauth_message(sign()), now_ms()), FetchKeys)
    assert isinstance(exchange.send(b"", now_ms()), Challenge)
    exchange = SaslExchange(oauthbearer(TokenPolicy(SaslSettings()), lambda: keys))
    exchange.send(oauth_message(sign()), now_ms())
    keys = KEYS
    assert isinstance(exchange.send(b"", now_ms()), Granted)


def test_a_token_with_another_authorization_id_is_refused():
    refused = oauth_exchange().send(oauth_message(sign(), "root"), now_ms())
    assert isinstance(refused, Refused)
    assert "authorization id" in refused.message


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01host=a\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"x" * (OAUTH_MAX_BYTES + 1),
        b"n,,\x01" + b"a=b\x01" * 2000 + b"\x01",
    ],
)
def test_malformed_oauthbearer_messages_are_refused(message):
    assert isinstance(oauth_exchange().send(message, now_ms()), Refused)
