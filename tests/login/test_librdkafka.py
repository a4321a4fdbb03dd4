"""Java's settings by librdkafka's names, and what is left as it is."""

import pytest

from kafscale.errors import ConfigError
from kafscale.login.librdkafka import librdkafka_settings
from tests.devtools.processes.sasl import sign

COMMON = "org.apache.kafka.common.security"
SCRAM_LINE = f'{COMMON}.scram.ScramLoginModule required username="alice" password="a \\"secret\\"";'


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"acks": "all"}, {"acks": "all"}),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": SCRAM_LINE},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": 'a "secret"',
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"},
            {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"},
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": "both.pem"},
            {"security.protocol": "SSL", "ssl.certificate.location": "both.pem", "ssl.key.location": "both.pem"},
        ),
        (
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": "-----BEGIN X----- QUJD -----END X-----",
                "ssl.keystore.key": "-----BEGIN Y----- QUJD -----END Y-----",
            },
            {
                "ssl.certificate.pem": "-----BEGIN X-----\nQUJD\n-----END X-----\n",
                "ssl.key.pem": "-----BEGIN Y-----\nQUJD\n-----END Y-----\n",
            },
        ),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        ({"ssl.keystore.location": "own.p12"}, {"ssl.keystore.location": "own.p12"}),  # librdkafka's: PKCS 12
        (
            {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"},
            {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"},
        ),
    ],
)
def test_settings(given, found):
    assert librdkafka_settings(given) == found


def test_a_token_is_read_from_its_file_each_time(tmp_path):
    file = tmp_path / "token"
    settings = librdkafka_settings(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{COMMON}.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{COMMON}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        }
    )
    assert settings.keys() == {"security.protocol", "sasl.mechanism", "oauth_cb"}
    for expiry in (1_900_000_000, 2_000_000_000):
        file.write_text(sign({"exp": expiry}) + "\n")
        assert settings["oauth_cb"]("") == (file.read_text().strip(), expiry)
    for nonsense in ("", "a.b.c", sign({"exp": None})):
        file.write_text(nonsense)
        with pytest.raises(ConfigError, match="what is there is no token"):
            settings["oauth_cb"]("")
    file.unlink()
    with pytest.raises(ConfigError, match="can't be read"):
        settings["oauth_cb"]("")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "TLS"}, "'TLS' is not known here; allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": SCRAM_LINE},
            "is not that of PLAIN; allowed: PlainLoginModule",
        ),
        ({"sasl.mechanism": "GSSAPI", "sasl.jaas.config": SCRAM_LINE}, "'GSSAPI' is not known; allowed: SCRAM-SHA-"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "nonsense"}, "is not as allowed: MODULE required"),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "file:///token",
                "sasl.login.callback.handler.class": "com.example.Handler",
            },
            "'Handler' is not known; allowed: OAuthBearerLoginCallbackHandler",
        ),
        ({"ssl.truststore.type": "PEM", "ssl.keystore.certificate.chain": "x"}, "'JKS' can't be read here"),
    ],
)
def test_settings_that_are_wrong(settings, message):
    with pytest.raises(ConfigError) as caught:
        librdkafka_settings({"security.protocol": "SASL_SSL", **settings})
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
