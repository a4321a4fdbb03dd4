"""Kafka's files of client settings are read as Java reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafscale.errors import ConfigError
from kafscale.login.properties import parse_properties, read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("  a  =  b  \r\nc:d", {"a": "b  ", "c": "d"}),
        ("a b = c", {"a": "b = c"}),
        ("# x=1\n ! y=2\n\nz=3", {"z": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("alone", {"alone": ""}),
        ("a==b", {"a": "=b"}),
        ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        ("a=b \\\n   c\\\n#d", {"a": "b c#d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=\\u00e9\\n\\t\\x", {"a": "é\n\tx"}),
        ("pem=-----BEGIN X----- \\\nMII \\\n-----END X-----", {"pem": "-----BEGIN X----- MII -----END X-----"}),
        ("a=b\\", {"a": "b"}),
    ],
)
def test_lines(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_an_unreadable_properties_file_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't be read \(No such file or directory\); allowed: a file"):
        read_properties(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8; allowed: a file"):
        read_properties(tmp_path / "binary")
