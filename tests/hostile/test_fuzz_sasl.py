"""Messages of SASL, tokens and key sets that are nearly right, for a moment; the module goes on for minutes."""

from __future__ import annotations

import pytest

from kafscale.security.exchanges import SaslExchange
from tests.hostile.fuzz_sasl import KINDS, fuzz

SECONDS = 1.0


def test_messages_that_are_nearly_right_let_nobody_in() -> None:
    findings = fuzz(seed=7, seconds=SECONDS)
    assert findings.problems == []
    assert set(findings.tried) == set(KINDS)
    assert set(findings.granted) <= set(KINDS)
    assert findings.granted["OAUTHBEARER"] > 0  # messages that are not changed do


def test_what_nobody_thought_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SaslExchange, "send", lambda *_: 1 / 0)
    findings = fuzz(seed=7, seconds=SECONDS)
    assert any("ZeroDivisionError" in problem for problem in findings.problems)
