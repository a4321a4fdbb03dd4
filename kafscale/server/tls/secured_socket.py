"""A socket that does not block with TLS over it, whose records pass through memory, many by one system call.

OpenSSL by itself asks the socket twice for each record, and clients send records of a few bytes: librdkafka makes one
of each value. It waits for nothing: who uses it waits for the socket, and has what OpenSSL has to say sent by `flush`.
"""

from __future__ import annotations

import socket
import ssl

import attrs

from kafscale.buffers import Buffer

# By one system call. A connection keeps as much memory as was ever here at once, and what is decrypted next is in the
# processor's cache.
FEED_MAX_BYTES = 64 << 10


@attrs.define(eq=False, repr=False)
class SecuredSocket:
    """Made by `of`. Its owner closes `tcp`."""

    tcp: socket.socket
    tls: ssl.SSLObject
    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO
    _unsent: Buffer = attrs.field(default=b"", init=False)  # goes before what is in _outgoing

    @classmethod
    def of(cls, taken: socket.socket, context: ssl.SSLContext) -> SecuredSocket:
        """Make one of a connection that came in."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return cls(taken, context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)

    def feed(self) -> int:
        """Take what is in the socket, up to FEED_MAX_BYTES, and return how much that was; 0 at the end of the stream.

        Raises BlockingIOError if there is nothing, and OSError if the connection is broken.
        """
        data = self.tcp.recv(FEED_MAX_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data)

    @property
    def is_fed(self) -> bool:
        """Tell whether there is something to read, or a part of it at least, without the socket."""
        return self._incoming.pending > 0 or self.tls.pending() > 0

    def flush(self) -> bool:
        """Send what is encrypted; False if the socket takes no more of it for now. Raises OSError."""
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
        """Return how much of what OpenSSL has encrypted, or says by itself, the socket has not taken."""
        return len(self._unsent) + self._outgoing.pending
