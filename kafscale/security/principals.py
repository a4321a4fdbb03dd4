"""Principals of clients, and rules that map a certificate's subject to one (KIP-371, SslPrincipalMapper).

    RULE:PATTERN/REPLACEMENT/    if the whole subject matches: the match, replaced
    RULE:PATTERN/REPLACEMENT/L   ... in lower case; U in upper case
    DEFAULT                      the subject as it is

The first matching rule of the comma-separated list counts. A slash within a rule is written `\\/`. The replacement has
`$1` for a group, `$0` for the match; a reference to a missing group stays. Patterns are RE2's, whose search is linear,
since a stranger chooses the subject; patterns that only Java has are refused at the start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import attrs

USER: Final = "User"


@attrs.frozen
class Principal:
    """A type and a name, written `User:alice` as in Kafka's ACLs (KafkaPrincipal)."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# Who has not authenticated, as Kafka calls it: by PLAINTEXT, or by SSL without a certificate.
ANONYMOUS: Final = Principal(USER, "ANONYMOUS")


SUBJECT_MAX_COUNT = 1024  # characters; real ones have some hundred, and replacing takes up to their square

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_RULE_SPLITTER = re.compile(rf"\s*({_RULE})\s*(,\s*|$)", re.ASCII)
_RULE_PARSER = re.compile(_RULE, re.ASCII)
# Java's Matcher.appendReplacement: an escaped character, a reference to a group, or a character that stands for itself.
_REPLACEMENT = re.compile(r"\\(.)|\$([0-9]+)|([^\\$])", re.DOTALL)


class NoMatchingRule(ValueError):
    """No rule applies to a subject."""


@attrs.frozen
class _Default:
    def apply(self, subject: str) -> str | None:
        return subject

    def __str__(self) -> str:
        return "DEFAULT"


@attrs.frozen
class _Replacing:
    """`parts` of the replacement are text, or the number of a group."""

    pattern_text: str
    replacement: str
    case: str
    pattern: Any
    parts: Sequence[str | int]

    @classmethod
    def parse(cls, pattern_text: str, replacement: str, case: str) -> _Replacing:
        pattern = _compile(pattern_text)
        return cls(pattern_text, replacement, case, pattern, list(_parse_replacement(replacement, pattern.groups)))

    def apply(self, subject: str) -> str | None:
        if self.pattern.fullmatch(subject) is None:
            return None
        name = self._replace_all(subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _replace_all(self, subject: str) -> str:
        """Replace like Java's String.replaceAll, which also replaces an empty rest for `.*`."""
        found: list[str] = []
        copied = position = 0
        while position <= len(subject) and (match := self.pattern.search(subject, position)) is not None:
            found.append(subject[copied : match.start()])
            found += [part if isinstance(part, str) else match.group(part) or "" for part in self.parts]
            copied = match.end()
            position = copied + (match.start() == copied)
        return "".join(found) + subject[copied:]

    def __str__(self) -> str:
        return f"RULE:{self.pattern_text}/{self.replacement}" + (f"/{self.case}" if self.case else "")


@attrs.frozen
class SslPrincipalMapper:
    """The rules of `--ssl-principal-mapping-rules`."""

    text: str

    def __attrs_post_init__(self) -> None:
        _ = self.rules  # so that a wrong one is found when it is made

    @cached_property
    def rules(self) -> Sequence[_Default | _Replacing]:
        return [rule for match in _RULE_SPLITTER.finditer(self.text.strip()) if (rule := _parse(match[1])) is not None]

    def principal(self, subject: str) -> Principal:
        if len(subject) > SUBJECT_MAX_COUNT:
            raise NoMatchingRule(f"the subject of its certificate has more than {SUBJECT_MAX_COUNT} characters")
        for rule in self.rules:
            name = rule.apply(subject)
            if name is not None:
                return Principal(USER, name)
        raise NoMatchingRule(
            f"no rule of --ssl-principal-mapping-rules applies to its certificate's subject '{subject}'"
        )


def _parse(text: str) -> _Default | _Replacing | None:
    """Read one rule; None for an empty one, which Kafka ignores. Raises ValueError."""
    match = _RULE_PARSER.match(text)
    if match is None or match.end() != len(text):
        raise ValueError(
            f"'{text}' is not a rule; allowed: DEFAULT, or RULE:PATTERN/REPLACEMENT/ with L or U behind it"
        )
    if match[1] is not None:
        return _Default()
    return None if match[2] is None else _Replacing.parse(match[2], match[3], match[4])


def _compile(pattern: str) -> Any:
    import re2  # takes a while, and most brokers need it for nothing else

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as exc:
        said = exc.args[0].decode(errors="replace") if isinstance(exc.args[0], bytes) else exc.args[0]
        raise ValueError(
            f"'{pattern}' is not a pattern ({said}); allowed: an RE2 expression, which has neither lookaround nor "
            "references to its own groups"
        ) from exc


def _parse_replacement(text: str, group_count: int) -> list[str | int]:
    """Split a replacement by Java's rules: the longest group number that exists follows a dollar."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        match = _REPLACEMENT.match(text, position)
        if match is None or (match[2] is not None and not group_count and int(match[2]) != 0):
            raise ValueError(
                f"'{text}' is not a replacement; allowed: text with $1 for the pattern's first group in parentheses, "
                r"\$ for a dollar and \\ for a backslash"
            )
        position = match.end()
        if match[2] is None:
            parts.append(match[1] or match[3])
            continue
        digits = match[2]
        while len(digits) > 1 and int(digits) > group_count:
            digits = digits[:-1]
        parts += [int(digits) if int(digits) <= group_count else f"${digits}", match[2][len(digits) :]]
    return parts
