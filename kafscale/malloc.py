"""What the C library does with memory that is freed (mallopt(3)).

glibc maps large blocks one by one, and gives what is freed at the end of its heap back to the kernel. A buffer that is
made again and again, as for each read of a socket or of an object, then has new pages every time.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory(*, kept_bytes: int, block_max_bytes: int) -> None:
    """Keep so much of what is freed, and have blocks of up to so much in it (32 MiB at most).

    Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        mallopt(_M_MMAP_THRESHOLD, block_max_bytes)
