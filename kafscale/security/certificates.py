"""X.509 certificates: their subject, as Java writes it, and their expiry.

Reads only the needed parts of DER (X.690, RFC 5280), from certificates that OpenSSL has accepted. Names are those of
Java's `X500Principal.getName()`, RFC 2253, as Kafka's mapping rules and ACLs expect them.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

import attrs

_SEQUENCE, _SET, _OID = 0x30, 0x31, 0x06
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_VERSION = 0xA0  # the context-specific tag [0], before the serial number, which certificates of version 1 lack
_BMP_STRING = 0x1E
# PrintableString, UTF8String, TeletexString, IA5String, GeneralString, BMPString: what Java takes for text in a name.
_TEXTS = frozenset({0x13, 0x0C, 0x14, 0x16, 0x1B, _BMP_STRING})
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED = frozenset(',=+<>#;"\\')
_BLANK = " \r"


@attrs.frozen(kw_only=True)
class ParsedCertificate:
    """Fields of a certificate. `not_after_seconds` is since 1970."""

    subject: str
    not_after_seconds: float

    @classmethod
    def parse(cls, der: bytes) -> ParsedCertificate:
        [signed, *_] = _children(_only(der))
        fields = list(_children(signed))
        if fields and fields[0].tag == _VERSION:
            del fields[0]
        if len(fields) < 5:
            raise ValueError("a certificate lacks some of its fields")
        _serial_number, _signature, _issuer, validity, subject = fields[:5]
        _not_before, not_after = _children(validity)
        return cls(subject=_name(subject), not_after_seconds=_time(not_after))

    @classmethod
    def parse_pem(cls, text: str) -> ParsedCertificate:
        """Read the first certificate of a PEM file. Raises ValueError."""
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        _, found, rest = text.partition(begin)
        body, found_end, _ = rest.partition(end)
        if not (found and found_end):
            raise ValueError("there is no PEM certificate in it")
        return cls.parse(ssl.PEM_cert_to_DER_cert(f"{begin}{body}{end}\n"))


@attrs.frozen
class _Element:
    """One value of DER; `encoded` is all of it, `content` without tag and length."""

    tag: int
    content: bytes
    encoded: bytes


def _elements(data: bytes) -> Iterator[_Element]:
    position = 0
    while position < len(data):
        if len(data) < position + 2:
            raise ValueError("DER ends within a value")
        tag, length, start = data[position], data[position + 1], position + 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[start : start + size], "big")
            start += size
            if not 1 <= size <= 4:
                raise ValueError("a length of DER is none")
        if start + length > len(data):
            raise ValueError("DER ends within a value")
        yield _Element(tag, data[start : start + length], data[position : start + length])
        position = start + length


def _only(data: bytes) -> _Element:
    [element] = _elements(data)
    return element


def _children(parent: _Element) -> Iterator[_Element]:
    if parent.tag not in (_SEQUENCE, _SET):
        raise ValueError("a DER value is not a sequence")
    return _elements(parent.content)


def _time(element: _Element) -> float:
    """Read UTCTime, with a year of two digits until 2049, or GeneralizedTime (RFC 5280)."""
    text = element.content.decode("ascii")
    if element.tag == _UTC_TIME:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif element.tag != _GENERALIZED_TIME:
        raise ValueError("a time of a certificate is none")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _name(name: _Element) -> str:
    """Return a distinguished name, whose last part comes first in RFC 2253."""
    parts = ["+".join(_attribute(attribute) for attribute in _children(part)) for part in _children(name)]
    return ",".join(reversed(parts))


def _attribute(attribute: _Element) -> str:
    oid, value = _children(attribute)
    number = _oid(oid)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or number}=#{value.encoded.hex()}"
    encoding = "utf-16-be" if value.tag == _BMP_STRING else "utf-8"
    return f"{keyword}={_escape(value.content.decode(encoding, errors='replace'))}"


def _escape(text: str) -> str:
    escaped = "".join(
        f"\\{character}" if character in _ESCAPED else "\\00" if character == "\0" else character for character in text
    )
    inner = escaped.strip(_BLANK)
    lead = len(escaped) - len(escaped.lstrip(_BLANK)) if inner else len(escaped)
    before, after = escaped[:lead], escaped[lead + len(inner) :]
    return "".join(f"\\{space}" for space in before) + inner + "".join(f"\\{space}" for space in after)


def _oid(element: _Element) -> str:
    if element.tag != _OID or not element.content:
        raise ValueError("an attribute's type in a name is none")
    numbers = [0]
    for octet in element.content:
        numbers[-1] = numbers[-1] << 7 | octet & 0x7F
        if not octet & 0x80:
            numbers.append(0)
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:-1])))
