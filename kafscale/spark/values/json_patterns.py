"""Regular expressions of JSON Schema (ECMA-262), bounded before the library `regex` compiles and searches them.

The library writes out what must be repeated (`(ab){1000}` a thousand times and once more, nested counts multiplied),
and keeps each text that a group captures: a line of pattern can take gigabytes in a second, or overflow the stack of C.
So a pattern is first read here: its size, written out, and its depth have bounds, and groups capture only where a
backreference needs them. What ECMA-262 has no syntax for, such as recursion and approximate matches, is refused.
"""

from __future__ import annotations

import re
import threading
import warnings
from typing import Any

import attrs
import regex

from kafscale.errors import DecodeError

PATTERN_MAX_LENGTH = 10_000  # characters
SIZE_MAX_COUNT = 50_000  # atoms and characters of sets, written out; each takes some 300 bytes, and 1 us to compile
DEPTH_MAX_COUNT = 50  # groups within groups; the library calls itself for each
KEPT_MAX_COUNT = 500_000  # the sizes of all that is kept compiled, together
CAPTURED_MAX_COUNT = 1_000_000  # groups times characters of the text, where backreferences need the groups

_TOKEN = re.compile(
    r"\\(?P<reference>[1-9][0-9]*|[kg]<[^>]*>)|(?P<escape>\\(?:[pPNu]\{[^}]*\}|.))"
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<capture>\((?![?*])|\(\?P?<[A-Za-z_]\w*>)|(?P<group>\(\?(?:[:=!]|<[=!]|[ims]+[:)]))|(?P<close>\))"
    r"|(?P<once>\{1\})|\{(?P<least>[0-9]+)(?:,[0-9]*)?\}|(?P<more>\+)|(?P<any>[*?])|(?P<brace>\{)|(?P<unknown>\()|(?P<atom>.)",
    re.DOTALL,
)


@attrs.frozen
class _Pattern:
    """A compiled pattern. capture_count: groups whose texts the library keeps while it searches."""

    compiled: Any
    size: int
    capture_count: int

    def search(self, text: str, timeout_seconds: float) -> bool:
        """Tell whether it is found. Raises DecodeError, TimeoutError."""
        if self.capture_count * len(text) > CAPTURED_MAX_COUNT:
            raise DecodeError(f"{len(text)} characters are too many for a pattern with backreferences")
        return self.compiled.search(text, timeout=timeout_seconds) is not None


_kept: dict[str, _Pattern] = {}
_lock = threading.Lock()


def compiled(pattern: str) -> _Pattern:
    """Compile a pattern, or take the one that is kept. Raises DecodeError."""
    found = _kept.get(pattern)
    if found is None:
        found = _compile(pattern)
        with _lock:
            if sum(each.size for each in _kept.values()) + found.size > KEPT_MAX_COUNT:
                _kept.clear()
            _kept[pattern] = found
    return found


def _compile(pattern: str) -> _Pattern:
    text, size, capture_count = _bounded(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later version may take for sets within sets
            return _Pattern(regex.compile(text, cache_pattern=False), size, capture_count)
    except (regex.error, RecursionError, OverflowError) as exc:
        raise DecodeError(f"{_shown(pattern)} is no regular expression: {exc}") from exc


def _bounded(pattern: str) -> tuple[str, int, int]:
    """Return the pattern as the library gets it, its size written out, and how many groups capture.

    Raises DecodeError if it is too large, or not of ECMA-262.
    """
    if len(pattern) > PATTERN_MAX_LENGTH:
        raise DecodeError(f"a pattern has {len(pattern)} characters; allowed: at most {PATTERN_MAX_LENGTH}")
    captures = any(found["reference"] is not None for found in _TOKEN.finditer(pattern))
    parts: list[str] = []
    sizes, last, capture_count = [0], 0, 0  # of each group that is open, and of the last atom or group
    for found in _TOKEN.finditer(pattern):
        kind, part = found.lastgroup, found[0]
        if kind == "unknown":
            raise DecodeError(f"{_shown(pattern)} has {pattern[found.start() :][:4]!r}, which ECMA-262 does not know")
        if kind in ("least", "more"):
            more = last * int(found["least"] or 1)
            sizes[-1], last = sizes[-1] + more, last + more
        elif kind in ("capture", "group") and not part.endswith(")"):
            sizes.append(1)
            if kind == "capture":
                capture_count += 1
                part = part if captures else "(?:"
        elif kind == "close" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif kind not in ("any", "once"):
            last = len(part) if kind == "set" else 1
            sizes[-1] += last
            part = part.replace("\\k<", "\\g<") if kind == "reference" else part  # as the library calls it
        parts.append("\\{" if kind == "brace" else part)
        if sizes[-1] > SIZE_MAX_COUNT or len(sizes) > DEPTH_MAX_COUNT:
            raise DecodeError(
                f"{_shown(pattern)} is too large, its repetitions written out ({SIZE_MAX_COUNT}), or its groups too "
                f"deep ({DEPTH_MAX_COUNT})"
            )
    return "".join(parts), sum(sizes), capture_count if captures else 0


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 100 else f"{pattern[:100]}…")
