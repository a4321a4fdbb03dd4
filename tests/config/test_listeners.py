"""How listeners are secured, and what TLS needs."""

from __future__ import annotations

from typing import Any

import pytest

from kafscale.config import Listener, SecurityProtocol, Settings, load
from kafscale.errors import ConfigError

SECURED = {"ssl_certificate_file": "chain.pem"}


def protocol(listener: str, **flags: Any) -> SecurityProtocol:
    settings = load({"listeners": (listener,), **SECURED, **flags}, {}).settings
    return settings.protocol_of(settings.listeners[0])


@pytest.mark.parametrize("expected", SecurityProtocol)
def test_a_name_that_is_a_protocol_is_meant(expected: SecurityProtocol) -> None:
    """Also in lower case: nobody who writes `ssl` wants a listener without it."""
    assert protocol(f"{expected}=h:1") is expected
    assert protocol(f"{expected.lower()}=h:1") is expected


def test_a_named_listener_is_plaintext_by_default() -> None:
    assert protocol("INSIDE=h:1") is SecurityProtocol.PLAINTEXT
    assert protocol("INSIDE=h:1", listener_security_protocols=("INSIDE=SASL_SSL",)) is SecurityProtocol.SASL_SSL


def test_protocols_come_from_the_environment_separated_by_commas() -> None:
    environment = {
        "KAFSCALE_LISTEN": "A=h:1,B=h:2",
        "KAFSCALE_LISTENER_SECURITY_PROTOCOL": "A=SSL,B=SASL_PLAINTEXT",
        "KAFSCALE_SSL_CERTIFICATE_FILE": "chain.pem",
    }
    settings = load({}, environment).settings
    assert [settings.protocol_of(each) for each in settings.listeners] == ["SSL", "SASL_PLAINTEXT"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"listener_security_protocols": ("A=SSL",)},
            "--listener-security-protocol: 'A=SSL' has no listener; allowed: .*",
        ),
        (
            {"listener_security_protocols": ("A",)},
            "--listener-security-protocol: 'A' is not .*; allowed: NAME=PROTOCOL.*",
        ),
        (
            {"listener_security_protocols": ("A=TLS",)},
            "--listener-security-protocol: 'A=TLS' is not .*; allowed: NAME=PROTOCOL, where PROTOCOL is PLAINTEXT.*",
        ),
        (
            {"listener_security_protocols": ("PLAINTEXT=SSL",)},
            "--listener-security-protocol: 'PLAINTEXT=SSL' contradicts the listener's name; allowed: .*",
        ),
        (
            {"listeners": ("A=h:1",), "listener_security_protocols": ("A=SSL", "A=PLAINTEXT")},
            "--listener-security-protocol: 'A' is given 2 times; allowed: each name once, as NAME=PROTOCOL",
        ),
        ({"listeners": ("SSL=h:1",)}, "--listen: 'SSL=h:1' needs a certificate; give --ssl-certificate-file .*"),
        ({"admin_ssl": "true"}, "--admin-ssl: TLS needs a certificate; give --ssl-certificate-file .*"),
        ({"ssl_key_file": "k"}, "--ssl-key-file: 'k' has no certificate; give --ssl-certificate-file"),
        (
            {"ssl_client_auth": "required"},
            "--ssl-client-auth: 'required' needs authorities.*; give --ssl-client-ca-file",
        ),
        ({"ssl_client_auth": "yes"}, "--ssl-client-auth: 'yes' is not known; allowed: none, requested, required"),
        ({"ssl_min_version": "TLSv1.1"}, "--ssl-min-version: 'TLSv1.1' is not known; allowed: TLSv1.2, TLSv1.3"),
    ],
)
def test_options_that_contradict_give_one_line(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"\A{message}\Z"):
        load(flags, {})


def test_settings_made_without_text_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="needs a certificate"):
        Settings(listeners=(Listener("SSL", "127.0.0.1", 0),))


def test_rules_with_commas_are_one_value_in_the_environment() -> None:
    rules = "RULE:^CN=(.*?),OU=.*$/$1/L,DEFAULT"
    assert load({}, {"KAFSCALE_SSL_PRINCIPAL_MAPPING_RULES": rules}).settings.ssl.ssl_principal_mapping_rules == rules
