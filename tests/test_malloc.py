import ctypes
import subprocess
import sys

import pytest

FAULTS = """
import resource
from kafscale.malloc import keep_freed_memory
if {kept}:
    keep_freed_memory(kept_bytes=4 << 20, block_max_bytes=1 << 20)
bytes(256 << 10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    bytes(bytearray(256 << 10))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_count(*, kept):
    done = subprocess.run([sys.executable, "-c", FAULTS.format(kept=kept)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")
def test_reallocated_buffers_reuse_memory_pages():
    assert faults_count(kept=True) < 1000 < faults_count(kept=False)
