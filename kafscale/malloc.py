"""Settings of the C library for freed memory (mallopt(3)).

glibc maps large blocks one by one, and returns freed memory at the end of its heap to the kernel. A buffer that is made
again and again then has new pages every time.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory(*, kept_bytes: int, block_max_bytes: int) -> None:
    """Keep `kept_bytes` of freed memory for blocks of up to `block_max_bytes` (32 MiB at most); only for glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        mallopt(_M_MMAP_THRESHOLD, block_max_bytes)
