"""Patterns of JSON Schema: what is refused before it is compiled, what is found, and what that takes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from kafscale.errors import DecodeError
from kafscale.spark.values import json_validation
from kafscale.spark.values.json_validation import KEPT_MAX_COUNT, SIZE_MAX_COUNT, compiled


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        (r"^[a-z]+$", "abc", True),
        (r"^\d{3}-\d{4}$", "123-4567", True),
        (r"^(a|b)\1$", "aa", True),
        (r"^(a|b)\1$", "ab", False),
        (r"^(?<y>\d+)-\k<y>$", "12-12", True),
        (r"^(?<y>\d+)-\k<y>$", "12-13", False),
        (r"^\p{L}{2}$", "äö", True),
        (r"a{,3}", "a{,3}", True),
        (r"{x}", "{x}", True),
        (r"(?i)^ABC$", "abc", True),
        (r"(?!x)y", "y", True),
        (r"(?<=a)b", "ab", True),
        (r"[[(]", "(", True),
        (r"\(a\)", "(a)", True),
        (r"^.{1,65535}$", "abc", True),
        (r"^[A-Za-z0-9+/]{344}$", "a" * 344, True),
        (r"^(?:[0-9a-f]{2}:){31}[0-9a-f]{2}$", ":".join(["ab"] * 32), True),
    ],
)
def test_patterns_find_the_expected_texts(pattern: str, text: str, is_found: bool) -> None:
    assert compiled(pattern).search(text, 5) is is_found


@pytest.mark.parametrize(
    "pattern",
    [
        "a{1000000}",
        "(?:a{1000000}){1000}",
        "(?:(?:(?:ab|c){99}){99}){99}",  # which ended the process: the library overflowed the stack
        "(?:" * 48 + "a" + "){1,9}" * 48,  # each level doubles
        "(?:" * 48 + "a" + ")+" * 48,
        "(?:" * 13 + "a" + "){2}" * 13,
        "(" * 5000 + "a" + ")" * 5000,
        "(" * 100 + "a" + ")" * 100,
        "[a-z0-9]{49999}",
        "a" * 10_001,
        "(a|(?R)b)*",
        "(?P<a>x)(?&a)",
        "(a)(?1)",
        "(?:abc){e<=3}(?>x)",
        "(*PRUNE)a",
        "(?x) a # (",
        "(?:",
        "[",
        "a**",
        "+",
        ")",
    ],
)
def test_a_pattern_that_is_too_large_or_not_of_ecma_262_is_refused_at_once(pattern: str) -> None:
    began = time.thread_time()
    with pytest.raises(DecodeError):
        compiled(pattern)
    assert time.thread_time() - began < 0.5


SEARCHES = """
import resource, time
from pathlib import Path
from kafscale.errors import DecodeError
from kafscale.spark.values.json_validation import compiled
text = "ab" * 500_000 + "!"
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (400 << 20),) * 2)
for pattern in (
    "^(?:" + "(" * 40 + "[ab]" + ")" * 40 + ")*[?x]",
    "(?:((((a))))|((((b)))))*[?x]",
    r"^(?:([ab])\\1?)*[?x]",
    "^" + "(?:a|b|ab)*" * 50 + "[?x]",
    "(?:ab|c){8000}",
    "(?=a){24000}",
    "(?i)(?:ſs|K){8000}",
):
    for searched in (text, text[:20_000]):
        try:
            compiled(pattern).search(searched, 0.5)
        except (DecodeError, TimeoutError):
            pass
"""


def test_searches_took_gigabytes() -> None:
    subprocess.run([sys.executable, "-c", SEARCHES], check=True, timeout=100)


def test_the_cache_of_compiled_patterns_is_bounded() -> None:
    for number in range(8):
        compiled(f"[{number}]{{{SIZE_MAX_COUNT // 4 - 1}}}")
        assert json_validation._kept.size <= KEPT_MAX_COUNT
    for number in range(12):
        compiled(f"{number}" + "a" * 9000 + "(?:b){20000}")
        assert json_validation._kept.size <= KEPT_MAX_COUNT
