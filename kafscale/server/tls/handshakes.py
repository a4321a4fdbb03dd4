"""TLS handshakes with clients: each in its connection's task, with a deadline, and at most `max_count` at once.

A step, up to some milliseconds of CPU, runs in a thread. When all `max_count` places are taken, new handshakes wait,
and the one whose peer is silent for longest, and for SLOW_SECONDS, gives way.
"""

from __future__ import annotations

import enum
import logging
import math
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.escaping import bounded, escaped
from kafscale.metrics import Counter, Metrics
from kafscale.server.quiet_log import QuietLog

logger = logging.getLogger(__name__)

# By one system call. A connection keeps as much memory as was ever here at once, and what is decrypted next is in the
# processor's cache.
FEED_MAX_BYTES = 64 << 10
SLOW_SECONDS = 2.0
REASON_MAX_COUNT = 300  # characters of a log line
_CLOSED_ERRORS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)


class HandshakeFailure(enum.StrEnum):
    CLOSED = "closed"  # by the peer
    TIMEOUT = "timeout"
    GAVE_WAY = "gave_way"
    NOT_TLS = "not_tls"
    VERSION = "version"
    CIPHER = "cipher"
    CLIENT_CERTIFICATE = "client_certificate"  # it is missing, expired, of another authority, or no rule applies
    SERVER_CERTIFICATE = "server_certificate"  # which the peer refuses
    OTHER = "other"


# OpenSSL's names of errors that have a cause which an operator can do something about; the advice is for the log.
_CAUSES = {
    HandshakeFailure.NOT_TLS: (
        {"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"}
        | {"BAD_RECORD_TYPE", "RECORD_LENGTH_MISMATCH", "UNEXPECTED_MESSAGE"},
        "it does not speak TLS; this listener wants security.protocol SSL or SASL_SSL",
    ),
    HandshakeFailure.VERSION: (
        {"UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"},
        "its versions of TLS are older than --ssl-min-version",
    ),
    HandshakeFailure.CIPHER: (
        {"NO_SHARED_CIPHER", "NO_SUITABLE_SIGNATURE_ALGORITHM", "NO_SUITABLE_KEY_SHARE"},
        "it has no cipher or signature in common with --ssl-ciphers and the certificate",
    ),
    HandshakeFailure.CLIENT_CERTIFICATE: (
        {"PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED"},
        "its certificate is missing, or is not of --ssl-client-ca-file",
    ),
    HandshakeFailure.SERVER_CERTIFICATE: (
        {"TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"}
        | {"SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_ACCESS_DENIED"}
        | {"TLSV1_ALERT_DECRYPT_ERROR"},
        "it does not trust the broker's certificate; see its ssl.truststore.location or ssl.ca.location",
    ),
}

_ENDED = {
    HandshakeFailure.TIMEOUT: "it took too long",
    HandshakeFailure.GAVE_WAY: f"others wait for its place, and it has said nothing for {SLOW_SECONDS:g} s",
}


@attrs.define(eq=False, repr=False)
class SecuredSocket:
    """A non-blocking socket with TLS, whose records pass through memory, many by one system call.

    OpenSSL by itself calls the socket twice for each record, and clients send records of a few bytes. It never waits;
    the owner waits for the socket, calls `flush`, and closes `tcp`.
    """

    tcp: socket.socket
    tls: ssl.SSLObject
    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO
    _unsent: Buffer = attrs.field(default=b"", init=False)  # goes before what is in _outgoing

    @classmethod
    def of(cls, taken: socket.socket, context: ssl.SSLContext) -> SecuredSocket:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return cls(taken, context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)

    def feed(self) -> int:
        """Receive up to FEED_MAX_BYTES; return their number, 0 at the end. Raises BlockingIOError, OSError."""
        data = self.tcp.recv(FEED_MAX_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data)

    @property
    def is_fed(self) -> bool:
        return self._incoming.pending > 0 or self.tls.pending() > 0

    def flush(self) -> bool:
        """Send encrypted bytes; False if the socket takes no more now. Raises OSError."""
        while self._unsent or self._outgoing.pending:
            data = self._unsent or self._outgoing.read()
            try:
                sent = self.tcp.send(data)
            except BlockingIOError:
                self._unsent = data
                return False
            self._unsent = memoryview(data)[sent:] if sent < len(data) else b""
        return True

    @property
    def to_flush_bytes(self) -> int:
        """Return the encrypted bytes that the socket has not taken."""
        return len(self._unsent) + self._outgoing.pending


@attrs.define(eq=False, repr=False)
class _Handshake:
    scope: trio.CancelScope
    waits_since: float = math.inf  # for its peer
    failure: HandshakeFailure | None = HandshakeFailure.TIMEOUT  # the result if its scope is cancelled

    def end(self, failure: HandshakeFailure | None) -> None:
        self.failure = failure
        self.scope.cancel()


@attrs.define(eq=False, kw_only=True, repr=False)
class Handshakes:
    max_count: int
    timeout_seconds: float
    quiet: QuietLog = attrs.field(factory=lambda: QuietLog(logger))
    done_count: Counter = attrs.field(factory=Counter, init=False)
    failed: dict[HandshakeFailure, Counter] = attrs.field(
        factory=lambda: {reason: Counter() for reason in HandshakeFailure}, init=False
    )
    _under_way: dict[_Handshake, None] = attrs.field(factory=dict, init=False)  # oldest first, and so are the next
    _having_place: set[_Handshake] = attrs.field(factory=set, init=False)
    _places: trio.CapacityLimiter = attrs.field(init=False)
    _threads: trio.CapacityLimiter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._places = trio.CapacityLimiter(self.max_count)
        self._threads = trio.CapacityLimiter(os.cpu_count() or 1)

    def register(self, metrics: Metrics) -> None:
        metrics.gauge("kafscale_ssl_handshakes_under_way", "TLS handshakes under way.", lambda: self.count)
        metrics.adopt_counter("kafscale_ssl_handshakes_total", "Finished TLS handshakes.", self.done_count)
        metrics.counts(
            "kafscale_ssl_handshakes_failed_total",
            "Failed TLS handshakes, by reason.",
            "reason",
            lambda: {reason.value: counted.value for reason, counted in self.failed.items()},
        )

    @property
    def count(self) -> int:
        return len(self._under_way)

    def give_way(self, before: float) -> bool:
        """End the oldest handshake if its peer has been silent since `before`; else return False."""
        oldest = next(iter(self._under_way), None)
        if oldest is None or oldest.waits_since > before:
            return False
        self._end(oldest, HandshakeFailure.GAVE_WAY)
        return True

    def drain(self) -> None:
        for handshake in self._under_way:
            handshake.end(None)

    async def perform(self, taken: socket.socket, context: ssl.SSLContext, address: str) -> SecuredSocket | None:
        """Do the handshake; None if it failed, which is counted and logged.

        The socket must not block; afterwards the result owns it, or it is closed.
        """
        now = trio.current_time()
        handshake = _Handshake(trio.CancelScope(deadline=now + self.timeout_seconds))
        self._under_way[handshake] = None
        is_done = False
        try:
            with handshake.scope:
                await self._wait_for_place(handshake)
                secured = SecuredSocket.of(taken, context)
                await self._shake(secured, handshake)
                is_done = True
                self.done_count.value += 1
                return secured
        except OSError as exc:  # of which those of ssl are
            self._fail_by(exc, address)
        finally:
            self._leave(handshake)
            if not is_done:
                taken.close()
        if handshake.scope.cancelled_caught and handshake.failure is not None:
            self.fail(handshake.failure, address, _ENDED[handshake.failure])
        return None

    async def _wait_for_place(self, handshake: _Handshake) -> None:
        while True:
            slowest = min(self._having_place, key=lambda each: each.waits_since, default=handshake)
            with trio.move_on_at(min(slowest.waits_since, trio.current_time()) + SLOW_SECONDS):
                await self._places.acquire_on_behalf_of(handshake)
                self._having_place.add(handshake)
                return
            if slowest in self._having_place and slowest.waits_since <= trio.current_time() - SLOW_SECONDS:
                self._end(slowest, HandshakeFailure.GAVE_WAY)

    def _end(self, handshake: _Handshake, failure: HandshakeFailure) -> None:
        handshake.end(failure)
        self._leave(handshake)

    def _leave(self, handshake: _Handshake) -> None:
        self._under_way.pop(handshake, None)
        if handshake in self._having_place:
            self._having_place.remove(handshake)
            self._places.release_on_behalf_of(handshake)

    async def _shake(self, secured: SecuredSocket, handshake: _Handshake) -> None:
        is_done = False
        while not is_done:
            await self._wait_for_peer(trio.lowlevel.wait_readable, secured, handshake)
            try:
                with suppress(BlockingIOError):
                    secured.feed()
                await trio.to_thread.run_sync(secured.tls.do_handshake, limiter=self._threads)
                is_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                with suppress(OSError):
                    secured.flush()  # the alert, by which the peer knows why
                raise
            while not secured.flush():
                await self._wait_for_peer(trio.lowlevel.wait_writable, secured, handshake)

    async def _wait_for_peer(
        self, wait: Callable[[socket.socket], Awaitable[None]], secured: SecuredSocket, handshake: _Handshake
    ) -> None:
        handshake.waits_since = trio.current_time()
        await wait(secured.tcp)
        handshake.waits_since = math.inf

    def _fail_by(self, exc: OSError, address: str) -> None:
        if isinstance(exc, _CLOSED_ERRORS) or not isinstance(exc, ssl.SSLError):
            self.failed[HandshakeFailure.CLOSED].value += 1
            logger.debug("%s went away during its handshake", address)  # as a probe of the port does
            return
        name = exc.reason or "an unknown error"
        for reason, (names, advice) in _CAUSES.items():
            if name in names:
                detail = getattr(exc, "verify_message", None)
                self.fail(reason, address, f"{advice} ({detail or name})")
                return
        self.fail(HandshakeFailure.OTHER, address, name)

    def fail(self, reason: HandshakeFailure, address: str, why: str) -> None:
        self.failed[reason].value += 1
        shown = escaped(bounded(why, REASON_MAX_COUNT))
        self.quiet.tell(
            "TLS handshakes", "closing the connection of %s, whose TLS handshake failed: %s", address, shown
        )
