"""Messages of SASL, tokens and key sets that are nearly right:  python -m tests.hostile.fuzz_sasl

    --seconds N     how long, 60 by default
    --seed N        which messages; printed, any by default

Each goes through a whole session, with what an honest client would have sent before it. Found is an exception, a login
that was granted to changed messages which say somebody else's name, and a message that took long.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from contextlib import suppress
from random import Random, SystemRandom

import attrs

from kafscale.config import SaslMechanism, SaslSettings
from kafscale.security.exchanges import DeriveKey, SaslExchange, plain, scram
from kafscale.security.oauthbearer import TokenPolicy, oauthbearer, parse_key_set
from kafscale.security.session import Moment, SaslAnswer, SaslSession
from kafscale.security.verifiers import salt_password
from tests.devtools.processes.sasl import (
    ALICE,
    Users,
    key_set,
    oauth_message,
    plain_message,
    scram_client,
    sign,
    signing_key,
)
from tests.hostile.fuzz_frames import mutate

SLOW_SECONDS = 0.5  # of CPU time; the slowest takes 10 ms
KEY_SET = json.dumps(key_set(signing_key("EC"), signing_key("RSA", "two"))).encode()
KEYS = parse_key_set(KEY_SET)
KINDS = (*SaslMechanism, "keys")


@attrs.define(eq=False)
class Findings:
    """Messages tried, their outcomes, and violations found."""

    tried: Counter[str] = attrs.field(factory=Counter)
    granted: Counter[str] = attrs.field(factory=Counter)
    problems: list[str] = attrs.field(factory=list)


def fuzz(*, seed: int, seconds: float) -> Findings:
    """Try messages for so long."""
    findings, random = Findings(), Random(seed)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not findings.problems:
        kind = random.choice(KINDS)
        findings.tried[kind] += 1
        since = time.process_time()
        try:
            if kind == "keys":
                _try_keys(random)
            else:
                _try_login(SaslMechanism(kind), random, findings)
        except Exception as exc:
            findings.problems.append(f"{kind}: {type(exc).__name__}: {exc}")
        if time.process_time() - since > SLOW_SECONDS:
            findings.problems.append(f"{kind}: {time.process_time() - since:.1f} s for one login")
    return findings


def _try_keys(random: Random) -> None:
    with suppress(ValueError):
        parse_key_set(mutate(random, KEY_SET))


def _try_login(mechanism: SaslMechanism, random: Random, findings: Findings) -> None:
    """Log in with messages of which some are changed."""
    session = SaslSession(mechanisms=tuple(SaslMechanism), make_exchange=_make_exchange)
    session.handshake(1, mechanism.value, Moment(0.0, _now_ms()))
    client = scram_client(mechanism) if mechanism.value.startswith("SCRAM") else None
    message = client.get_client_first().encode() if client else _first(mechanism)
    for step in range(3):
        changed = mutate(random, message) if random.random() < 0.5 else message
        answer = _answered(session, bytes(changed))
        if session.principal is not None:
            findings.granted[mechanism] += 1
            if session.principal.name != ALICE:
                findings.problems.append(f"{mechanism}: {session.principal} by {changed!r}")
        if session.principal is not None or session.failure is not None:
            return
        message = b"\x01"
        if client is not None and step == 0:
            try:
                client.set_server_first(answer.data.decode())
                message = client.get_client_final().encode()
            except Exception:  # the client does not continue after a changed message
                message = b"c=biws,r=x,p=AA=="


def _make_exchange(mechanism: SaslMechanism) -> SaslExchange:
    if mechanism is SaslMechanism.PLAIN:
        return SaslExchange(plain(Users()))
    if mechanism is SaslMechanism.OAUTHBEARER:
        return SaslExchange(oauthbearer(TokenPolicy(SaslSettings()), lambda: KEYS))
    return SaslExchange(scram(mechanism, Users()))


def _first(mechanism: SaslMechanism) -> bytes:
    return plain_message() if mechanism is SaslMechanism.PLAIN else oauth_message(sign())


def _answered(session: SaslSession, data: bytes) -> SaslAnswer:
    now = Moment(0.0, _now_ms())
    step = session.authenticate(data, now)
    while not isinstance(step, SaslAnswer):
        result = b""
        if isinstance(step, DeriveKey):
            result = salt_password(step.mechanism, step.password, step.salt, step.iterations)
        step = session.resume(result, now)
    return step


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz_sasl")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    findings = fuzz(seed=options.seed, seconds=options.seconds)
    print(f"tried {dict(findings.tried)}, granted {dict(findings.granted)}")
    print(*findings.problems, sep="\n")
    return 1 if findings.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
