"""Tokens that name a user, and those that must not."""

import base64
import hmac
import json
import math
import time

import pytest
from joserfc.jwk import ECKey, KeySet, OctKey
from joserfc.jws import serialize_compact

from kafscale.config import SaslSettings
from kafscale.security.oauthbearer import TOKEN_MAX_BYTES, TokenPolicy, TokenRefused, UnknownKey, parse_key_set
from tests.devtools.processes.sasl import ALICE, key_set, sign, signing_key

NOW = int(time.time())


@pytest.fixture(scope="module")
def keys():
    return parse_key_set(json.dumps(key_set(signing_key("EC"), signing_key("RSA", "two"))).encode())


def check(token, keys, **policy):
    settings = SaslSettings(**{f"sasl_oauthbearer_{name}": value for name, value in policy.items()})
    return TokenPolicy(settings).check(token, keys, int(time.time() * 1000))


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("kind", [("EC", "one"), ("RSA", "two")])
def test_a_token_names_its_user(kind, keys):
    claims = check(sign(key=signing_key(*kind), lifetime_seconds=100), keys)
    assert claims.name == ALICE
    assert abs(claims.expires_at_ms / 1000 - time.time() - 100) < 5


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW - 600}, "expired"),
        ({"exp": None}, "'exp' is missing"),
        *(({"exp": each}, "'exp' is not a time") for each in ("soon", True, 10**30, 10**400, math.inf, math.nan, -1)),
        ({"nbf": NOW + 3600}, "not valid yet"),
        ({"iat": NOW + 3600}, "not valid yet"),
        *(({"sub": each}, "'sub' is not a user name") for each in (None, "", 7, "x" * 256)),
        ({"aud": "kafka"}, "for an audience"),
        *(({"aud": each}, "'aud' is neither a string") for each in ({"a": 1}, [1], 7)),
    ],
)
def test_claims_that_are_refused(claims, why, keys):
    with pytest.raises(TokenRefused, match=why):
        check(sign(claims), keys)


def test_a_token_expired_within_the_clock_skew_is_accepted(keys):
    just_expired = sign({"exp": int(time.time()) - 10})
    assert check(just_expired, keys, clock_skew_seconds=60).name == ALICE
    with pytest.raises(TokenRefused, match="expired"):
        check(just_expired, keys, clock_skew_seconds=0)


def test_audiences(keys):
    for audience in ("kafka", ["other", "kafka"]):
        assert check(sign({"aud": audience}), keys, expected_audience=["kafka", "log"]).name == ALICE
    for audience in (None, "other", ["other"], []):
        with pytest.raises(TokenRefused, match="no expected audience"):
            check(sign({"aud": audience}), keys, expected_audience=["kafka"])


def test_issuers(keys):
    assert check(sign({"iss": "us"}), keys, expected_issuer="us").name == ALICE
    for other in ("them", None, 7, ["us"]):
        with pytest.raises(TokenRefused, match="'iss'"):
            check(sign({"iss": other}), keys, expected_issuer="us")


def test_scopes(keys):
    policy = {"scope_claim_name": "scp", "required_scopes": ["read", "write"]}
    for scopes in ("write read more", ["read", "write"]):
        assert check(sign({"scp": scopes}), keys, **policy).name == ALICE
    for scopes in ("read", None, 7, ["write"]):
        with pytest.raises(TokenRefused, match="lacks"):
            check(sign({"scp": scopes}), keys, **policy)


def test_a_token_signed_with_an_unknown_key_raises_unknown_key(keys):
    for token, known in ((sign(key=signing_key("EC", "three")), keys), (sign(), KeySet([]))):
        with pytest.raises(UnknownKey):
            check(token, known)


def test_a_key_of_the_same_id_that_is_another_one(keys):
    own = ECKey.generate_key("P-256", {"kid": "one"})
    for token in (sign(key=own), sign(key=own, jwk=own.as_dict(private=False))):
        with pytest.raises(TokenRefused):
            check(token, keys)


def test_no_algorithm_and_a_public_key_in_the_place_of_a_shared_secret(keys):
    body = b64(json.dumps({"sub": ALICE, "exp": NOW + 1000}).encode())
    tokens = [f"{b64(json.dumps({'alg': each, 'kid': 'one'}).encode())}.{body}." for each in ("none", "None")]
    head = b64(json.dumps({"alg": "HS256", "kid": "two"}).encode())
    public = signing_key("RSA", "two").as_pem(private=False)
    tokens.append(f"{head}.{body}.{b64(hmac.digest(public, f'{head}.{body}'.encode(), 'sha256'))}")
    for token in tokens:
        with pytest.raises(TokenRefused):
            check(token, keys)


def test_claims_that_are_changed_afterwards(keys):
    head, _, signature = sign().split(".")
    body = b64(json.dumps({"sub": "root", "exp": NOW + 1000}).encode())
    with pytest.raises(TokenRefused, match="signature"):
        check(f"{head}.{body}.{signature}", keys)


@pytest.mark.parametrize(
    "token",
    [
        *("", "a.b.c", "..", "a.b", "x" * (TOKEN_MAX_BYTES + 1), "\udc00.e30.AA"),
        *(f"{b64(head)}.e30.AA" for head in (b"[" * 9000, b'{"alg":["ES256"]}', b'{"alg":{}}', b"7")),
        *(b64(b'{"alg":"ES256",' + more) + ".e30.AA" for more in (b'"kid":{}}', b'"crit":["exp"]}')),
    ],
)
def test_malformed_tokens_are_refused(token, keys):
    with pytest.raises((TokenRefused, UnknownKey)):
        check(token, keys)


@pytest.mark.parametrize("payload", [b"[]", b"7", b"{", b"[" * 5000, b'{"sub":"a","exp":' + b"9" * 5000 + b"}"])
def test_a_token_payload_that_is_not_an_object_is_refused(payload, keys):
    with pytest.raises(TokenRefused):
        check(serialize_compact({"alg": "ES256", "kid": "one"}, payload, signing_key()), keys)


def test_a_key_that_is_too_short_is_left_out():
    short = {"kty": "RSA", "n": "wJ" * 85 + "w", "e": "AQAB", "kid": "short"}
    data = json.dumps({"keys": [short, *key_set(signing_key())["keys"]]}).encode()
    assert [key.kid for key in parse_key_set(data)] == ["one"]


def test_keys_that_sign_nothing_here_are_left_out():
    shared = OctKey.generate_key(256, {"kid": "shared"}).as_dict(private=True)
    encrypting = {**signing_key("EC", "enc").as_dict(private=False), "use": "enc"}
    odd = [{"kty": "RSA", "n": 7}, {"kty": "EC", "crv": "P-999", "x": "", "y": ""}, {"kty": "XYZ"}]
    data = json.dumps({"keys": [shared, encrypting, *odd, *key_set(signing_key())["keys"]]}).encode()
    assert [key.kid for key in parse_key_set(data)] == ["one"]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"keys":[]}', b'{"keys":7}', b'{"keys":[7]}', b"[" * 100_000, b" " * (2 << 20)]
)
def test_malformed_key_sets_are_refused(data):
    with pytest.raises(ValueError, match=r"it |the limit"):
        parse_key_set(data)


def test_the_options_make_the_policy(keys):
    policy = TokenPolicy(
        SaslSettings(
            sasl_oauthbearer_expected_issuer="us",
            sasl_oauthbearer_expected_audience=("kafka",),
            sasl_oauthbearer_sub_claim_name="user",
            sasl_oauthbearer_scope_claim_name="scp",
            sasl_oauthbearer_required_scopes=("log",),
            sasl_oauthbearer_clock_skew_seconds=5,
        )
    )
    token = sign({"iss": "us", "aud": "kafka", "user": "bob", "scp": "log"})
    assert policy.check(token, keys, int(time.time() * 1000)).name == "bob"
