"""Settings of the C library for freed memory (mallopt(3)).

glibc maps large blocks one by one, and gives freed memory at the end of its heap back to the kernel. A buffer that is
made again and again, as for each read of a socket or of an object, then has new pages every time.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory(*, kept_bytes: int, block_max_bytes: int) -> None:
    """Keep `kept_bytes` of freed memory, and use it for blocks of up to `block_max_bytes` (32 MiB at most).

    Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        mallopt(_M_MMAP_THRESHOLD, block_max_bytes)
