"""The data source's options of values."""

import pytest

from kafscale.errors import ConfigError, UnknownSchema
from kafscale.spark.values.options import ValueOptions
from kafscale.values.registry import RegistryOptions

URL = "http://registry:8081"


def test_options_are_taken_in_any_case_of_letters():
    options = ValueOptions.parse(
        {"valueformat": "Avro", "SCHEMAREGISTRYURL": f"{URL}/, http://other:8081", "valueSubject": "s", "store": "x"}
    )
    assert options.format == "avro"
    assert options.registry.urls == (URL, "http://other:8081")
    assert options.subject == "s"


def test_without_a_format_values_stay_bytes():
    assert ValueOptions.parse({"store": "x"}) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueSubject": "s"}, "valueSubject has no effect without valueFormat"),
        ({"valueFormat": "avro"}, "needs schemaRegistryUrl"),
        ({"valueFormat": "xml", "schemaRegistryUrl": URL}, "one of avro, protobuf, json"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "registry"}, "give http://host:port"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://a:b@h"}, "has credentials in it: give them by a file"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "a:b@h:8081"}, "has credentials in it: give them by a file"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http//a:b@h"}, "has credentials in it: give them by a file"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://[::1"}, r"is 'http://\[::1': give http://host:port"),
        ({"valueFormat": "json", "schemaRegistryUrl": URL, "valueValidate": "maybe"}, "true or false"),
        ({"valueFormat": "avro", "schemaRegistryUrl": URL, "valueSubject": "s", "valueSchema": "t"}, "not both"),
        ({"valueFormat": "avro", "schemaRegistryUrl": URL, "valueSchemaVersion": "x"}, "a number, or latest"),
    ],
)
def test_a_wrong_option_error_names_the_allowed_values(options, message):
    with pytest.raises(ConfigError, match=message):
        ValueOptions.parse(options)


def test_the_reader_schema_is_the_subjects_the_topics_or_given(values):
    values.registry.register("orders-value", '"int"')
    values.registry.register("orders-value", '"long"')
    parse = {"valueFormat": "avro", "schemaRegistryUrl": values.registry.url}
    assert ValueOptions.parse(parse).reader_options(values.client, "orders").schema.text == '"long"'
    first = ValueOptions.parse({**parse, "valueSubject": "orders-value", "valueSchemaVersion": "1"})
    assert first.reader_options(values.client).schema.text == '"int"'
    given = ValueOptions.parse({**parse, "valueSchema": '"string"'})
    assert given.reader_options(values.client).schema.text == '"string"'
    with pytest.raises(ConfigError, match="give the subject"):
        ValueOptions.parse(parse).reader_options(values.client)
    with pytest.raises(UnknownSchema, match="no /subjects/nope-value"):
        ValueOptions.parse(parse).reader_options(values.client, "nope")


def test_credentials_of_the_registry_had_to_be_options(tmp_path, monkeypatch):
    """Which programs and arguments have, and other users of the machine may see."""
    secret = tmp_path / "secret"
    secret.write_text("me:hidden\n")
    base = {"valueFormat": "avro", "schemaRegistryUrl": "http://registry"}

    def registry(**more: str) -> RegistryOptions:
        options = ValueOptions.parse({**base, **more})
        assert options is not None
        return options.registry

    assert registry(schemaRegistryBasicAuthFile=str(secret)).basic_auth == "me:hidden"
    assert registry(schemaRegistryBearerTokenFile=str(secret)).bearer_token == "me:hidden"
    monkeypatch.setenv("KAFSCALE_SCHEMA_REGISTRY_BASIC_AUTH", "of:environment")
    assert registry().basic_auth == "of:environment"
    given = registry(schemaRegistryBearerToken="given")
    assert (given.basic_auth, given.bearer_token) == (None, "given")
    with pytest.raises(ConfigError, match="either itself or by a file"):
        registry(schemaRegistryBasicAuthFile=str(secret), schemaRegistryBasicAuth="a:b")
    with pytest.raises(ConfigError, match="can't be read"):
        registry(schemaRegistryBasicAuthFile=str(tmp_path / "nowhere"))
    assert "hidden" not in repr(registry(schemaRegistryBasicAuthFile=str(secret)))
