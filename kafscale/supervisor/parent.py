"""A process that ends when the one that started it does, however that ends; Linux only (prctl(2), PR_SET_PDEATHSIG).

The kernel watches the thread that made the process, so that has to be one that lasts: the main one. May not import
anything of KafScale.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with(parent_pid: int) -> None:
    """Have the kernel kill this process once its parent has ended, and end it now if that has ended already.

    What was acknowledged is durable, so nothing is lost; and nobody else holds the data directory at the next start.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)
