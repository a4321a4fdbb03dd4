from urllib.parse import parse_qs

import pytest

from kafscale.errors import AccessDenied, StoreUnavailable
from kafscale.store.s3.credentials import (
    HttpAnswer,
    configured_region,
    default_providers,
    given,
    search,
)
from kafscale.store.s3.sigv4 import S3Credentials

JSON = b"""{"Code": "Success", "AccessKeyId": "AKID", "SecretAccessKey": "SECRET", "Token": "TOKEN",
            "Expiration": "2030-01-02T03:04:05Z"}"""
STS = b"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKID</AccessKeyId>
  <SecretAccessKey>SECRET</SecretAccessKey><SessionToken>TOKEN</SessionToken>
  <Expiration>2030-01-02T03:04:05Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""
TEMPORARY = S3Credentials(
    access_key_id="AKID", secret_access_key="SECRET", session_token="TOKEN", expires_at_seconds=1893553445.0
)


def find(environ, home, answers=()):
    """Drive a search through the default places; returns what it found and the calls that it made."""
    lookup = search(default_providers(environ, home))
    answers, calls = list(answers), []
    try:
        calls.append(next(lookup))
        while True:
            calls.append(lookup.send(answers.pop(0)))
    except StopIteration as stop:
        assert not answers
        return stop.value, calls


def ok(body=JSON):
    return HttpAnswer(status=200, body=body)


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".aws").mkdir()
    return tmp_path


def write(path, text):
    path.write_text(text)
    return str(path)


def test_the_environment_comes_first(home):
    write(home / ".aws" / "credentials", "[default]\naws_access_key_id = no\naws_secret_access_key = no\n")
    environ = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "SECRET"}
    expected = S3Credentials(access_key_id="AKID", secret_access_key="SECRET")
    assert find(environ, home) == (expected, [])
    found, _ = find({**environ, "AWS_SESSION_TOKEN": "TOKEN"}, home)
    assert found.session_token == "TOKEN"


def test_half_a_pair_in_the_environment_is_an_error(home):
    with pytest.raises(AccessDenied, match="AWS_SECRET_ACCESS_KEY"):
        find({"AWS_ACCESS_KEY_ID": "AKID"}, home)


def test_missing_credentials_raise_an_error_that_lists_all_sources(home):
    with pytest.raises(AccessDenied) as caught:
        find({}, home, [None])
    message = str(caught.value)
    for place in ("environment", "web identity", "profile", "container", "instance metadata", "AWS_ACCESS_KEY_ID"):
        assert place in message


# --- profiles


def test_a_profile_is_read_from_both_files(home):
    write(
        home / ".aws" / "credentials",
        "[default]\naws_access_key_id=A\naws_secret_access_key=S%S\n[other]\naws_access_key_id=B\n"
        "aws_secret_access_key=T\naws_session_token=U\n",
    )
    write(
        home / ".aws" / "config",
        "[default]\nregion = eu-west-1\n[profile other]\nregion = eu-west-2\n"
        "[profile only]\naws_access_key_id=C\naws_secret_access_key=V\ns3 =\n  max_concurrent_requests = 20\n",
    )
    assert find({}, home)[0] == S3Credentials(access_key_id="A", secret_access_key="S%S")
    assert find({"AWS_PROFILE": "other"}, home)[0] == S3Credentials(
        access_key_id="B", secret_access_key="T", session_token="U"
    )
    assert find({"AWS_PROFILE": "only"}, home)[0].access_key_id == "C"
    assert configured_region({}, home) == "eu-west-1"
    assert configured_region({"AWS_PROFILE": "other"}, home) == "eu-west-2"
    assert configured_region({"AWS_DEFAULT_REGION": "a", "AWS_REGION": "b"}, home) == "b"
    assert configured_region({"AWS_PROFILE": "absent"}, home) is None


def test_credential_files_can_be_placed_by_environment_variables(home):
    environ = {
        "AWS_SHARED_CREDENTIALS_FILE": write(
            home / "c", "[default]\naws_access_key_id=A\naws_secret_access_key=S\nregion=us-west-2\n"
        ),
        "AWS_CONFIG_FILE": str(home / "absent"),
    }
    assert find(environ, home)[0].access_key_id == "A"
    assert configured_region(environ, home) == "us-west-2"


def test_a_profile_that_was_named_must_be_there(home):
    with pytest.raises(AccessDenied, match="'absent'"):
        find({"AWS_PROFILE": "absent"}, home)


@pytest.mark.parametrize("key", ["role_arn", "sso_session", "credential_process"])
def test_a_profile_with_an_unsupported_setting_is_refused_by_name(home, key):
    write(home / ".aws" / "config", f"[default]\n{key} = something\n")
    with pytest.raises(AccessDenied, match=key):
        find({}, home)


def test_a_profile_without_keys_is_passed_over(home):
    write(home / ".aws" / "config", "[default]\nregion = eu-west-1\n")
    environ = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}
    assert find(environ, home, [ok()])[0] == TEMPORARY


@pytest.mark.parametrize("text", ["no section\n", "[default\n", "\ufffe"])
def test_a_file_that_is_not_a_profile_file_is_named_in_the_error(home, text):
    (home / ".aws" / "credentials").write_bytes(text.encode("utf-16") if "\ufffe" in text else text.encode())
    with pytest.raises(AccessDenied, match="credentials"):
        find({}, home)


# --- web identity


def test_a_web_identity_token_is_traded_at_sts(home):
    environ = {
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
        "AWS_WEB_IDENTITY_TOKEN_FILE": write(home / "token", "a+token\n"),
        "AWS_REGION": "eu-west-1",
    }
    found, [call] = find(environ, home, [ok(STS)])
    assert found == TEMPORARY
    assert (call.method, call.url) == ("POST", "https://sts.eu-west-1.amazonaws.com/")
    form = {name: value for name, [value] in parse_qs(call.body.decode()).items()}
    assert form == {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": "arn:aws:iam::1:role/r",
        "RoleSessionName": "kafscale",
        "WebIdentityToken": "a+token",
    }


def test_a_profile_can_use_a_web_identity(home):
    token = write(home / "token", "t")
    write(home / ".aws" / "config", f"[default]\nrole_arn = arn:r\nweb_identity_token_file = {token}\n")
    found, [call] = find({}, home, [ok(STS)])
    assert found == TEMPORARY
    assert call.url == "https://sts.amazonaws.com/"


def test_sts_refusals_silence_and_malformed_answers_raise_store_errors(home):
    environ = {"AWS_ROLE_ARN": "arn:r", "AWS_WEB_IDENTITY_TOKEN_FILE": write(home / "token", "t")}
    with pytest.raises(AccessDenied, match=r"arn:r.*403.*Not authorized"):
        find(environ, home, [HttpAnswer(status=403, body=b"Not authorized")])
    for answer in (None, HttpAnswer(status=500, body=b"")):
        with pytest.raises(StoreUnavailable, match="STS"):
            find(environ, home, [answer])
    for body in (b"", b"<x/>", STS.replace(b"2030", b"soon")):
        with pytest.raises(AccessDenied, match="STS sent no credentials"):
            find(environ, home, [ok(body)])
    (home / "bytes").write_bytes(b"\xff")
    for name in ("absent", "bytes"):
        with pytest.raises(AccessDenied, match="AWS_WEB_IDENTITY_TOKEN_FILE"):
            find({**environ, "AWS_WEB_IDENTITY_TOKEN_FILE": str(home / name)}, home)


# --- container


def test_a_container_asks_its_agent(home):
    found, [call] = find({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x?id=1"}, home, [ok()])
    assert found == TEMPORARY
    assert call.url == "http://169.254.170.2/v2/x?id=1"
    assert call.headers == {}


@pytest.mark.parametrize(
    "url",
    [
        "https://agent.example/x",
        "http://127.0.0.1:8080/x",
        "http://localhost/x",
        "http://169.254.170.23/v1/credentials",
        "http://[fd00:ec2::23]/v1/credentials",
        "http://[::1]/x",
    ],
)
def test_the_container_agent_receives_the_authorization_token(home, url):
    environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": url, "AWS_CONTAINER_AUTHORIZATION_TOKEN": "old"}
    assert find(environ, home, [ok()])[1][0].headers == {"authorization": "old"}
    environ["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = write(home / "token", "new\n")
    found, [call] = find(environ, home, [ok()])
    assert (found, call.url, call.headers) == (TEMPORARY, url, {"authorization": "new"})


@pytest.mark.parametrize("url", ["http://agent.example/x", "http://10.0.0.1/x", "http://127.0.0.1.example/"])
def test_the_token_is_not_sent_to_a_remote_agent_without_https(home, url):
    with pytest.raises(AccessDenied, match="https"):
        find({"AWS_CONTAINER_CREDENTIALS_FULL_URI": url}, home)


def test_agent_refusals_silence_and_malformed_answers_raise_store_errors(home):
    environ = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}
    with pytest.raises(AccessDenied, match="404"):
        find(environ, home, [HttpAnswer(status=404, body=b"")])
    with pytest.raises(StoreUnavailable, match="no answer"):
        find(environ, home, [None])
    no_secret, number = JSON.replace(b'"SECRET"', b"null"), JSON.replace(b'"TOKEN"', b"1")
    for body in (b"", b"[]", b'{"AccessKeyId": "A"}', JSON.replace(b"2030", b"soon"), no_secret, number):
        with pytest.raises(AccessDenied, match="not credentials"):
            find(environ, home, [ok(body)])


# --- instance metadata


def test_an_instance_asks_for_a_token_first(home):
    found, calls = find({}, home, [ok(b"SESSION"), ok(b"role-name\n"), ok()])
    assert found == TEMPORARY
    base = "http://169.254.169.254/latest"
    assert [(call.method, call.url) for call in calls] == [
        ("PUT", f"{base}/api/token"),
        ("GET", f"{base}/meta-data/iam/security-credentials/"),
        ("GET", f"{base}/meta-data/iam/security-credentials/role-name"),
    ]
    assert calls[0].headers == {"x-aws-ec2-metadata-token-ttl-seconds": "21600"}
    assert calls[1].headers == calls[2].headers == {"x-aws-ec2-metadata-token": "SESSION"}


def test_an_instance_without_a_role_has_no_credentials(home):
    with pytest.raises(AccessDenied, match="the instance has no role"):
        find({}, home, [ok(b"SESSION"), HttpAnswer(status=404, body=b"")])


@pytest.mark.parametrize("page", ["<p>Zugang gewährt</p>".encode(), b"\xff\xfe", b"", b"x" * 100_000])
def test_a_page_of_a_proxy_is_not_taken_for_instance_metadata(home, page):
    """What is no text of a header or an address ended the broker, as no failure of the store."""
    with pytest.raises(AccessDenied, match="no service at http://169"):
        find({}, home, [ok(page)])
    with pytest.raises(StoreUnavailable, match="no name of a role"):
        find({}, home, [ok(b"SESSION"), ok(page)])


def test_instance_metadata_can_be_turned_off(home):
    with pytest.raises(AccessDenied, match="AWS_EC2_METADATA_DISABLED"):
        find({"AWS_EC2_METADATA_DISABLED": "true"}, home)


def test_given_credentials_are_just_that():
    lookup = search(given(TEMPORARY))
    with pytest.raises(StopIteration) as stop:
        next(lookup)
    assert stop.value.value == TEMPORARY
