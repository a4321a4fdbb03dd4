"""Messages of SASL, tokens and key sets that are nearly right, for a moment; the module goes on for minutes."""

from __future__ import annotations

import pytest

from kafscale.security.exchanges import SaslExchange
from tests.hostile.fuzz_sasl import KINDS, fuzz

SECONDS = 1.0


def test_mutated_login_messages_grant_no_access() -> None:
    findings = fuzz(seed=7, seconds=SECONDS)
    assert findings.problems == []
    assert set(findings.tried) == set(KINDS)
    assert set(findings.granted) <= set(KINDS)
    assert findings.granted["OAUTHBEARER"] > 0  # messages that are not changed do


def test_an_unexpected_exception_in_a_login_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SaslExchange, "send", lambda *_: 1 / 0)
    findings = fuzz(seed=7, seconds=SECONDS)
    assert any("ZeroDivisionError" in problem for problem in findings.problems)
