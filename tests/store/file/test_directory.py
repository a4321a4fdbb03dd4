import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from kafscale.errors import AccessDenied, NotFound, PreconditionFailed, StoreError, StoreUnavailable
from kafscale.store.file import directory as directory_module
from kafscale.store.file.directory import STAGING_STALE_SECONDS, Directory
from kafscale.store.file.slices import SLICE_BYTES


def no_pause():
    pass


def keys_of(directory, prefix="", start_after=""):
    return [info.key for info in directory.walk(prefix, start_after)]


def staged(path):
    return os.listdir(path / ".kafscale" / "staging")


def run_together(script, path, count):
    """Run `count` processes of the script at once; what each has printed last, as a number."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE_PRELUDE + script, path, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count
    return [int(output) for output in outputs]


RACE_PRELUDE = """
import sys
from kafscale.errors import NotFound, PreconditionFailed
from kafscale.store.file.directory import Directory
bucket = Directory.open(sys.argv[1])
me = sys.argv[2].encode()
pause = lambda: None
print("ready", flush=True)
sys.stdin.readline()
"""


def test_put_if_absent_has_one_winner_between_processes(tmp_path):
    wins = run_together(
        """
won = 0
for number in range(100):
    try:
        bucket.write_if_absent(f"race/{number}", [me], between_slices=pause)
        won += 1
    except PreconditionFailed:
        pass
print(won)
""",
        tmp_path,
        3,
    )
    assert sum(wins) == 100
    bucket = Directory.open(tmp_path)
    owners = [bytes(bucket.read(f"race/{number}").data) for number in range(100)]
    assert [owners.count(b"%d" % number) for number in range(3)] == wins


def test_put_if_match_loses_no_update_between_processes(tmp_path):
    bucket = Directory.open(tmp_path)
    bucket.write("counter", [b"0"], between_slices=no_pause)
    run_together(
        """
done = 0
while done < 60:
    part = bucket.read("counter")
    try:
        bucket.write_if_match("counter", [b"%d" % (int(part.data) + 1)], part.etag, between_slices=pause)
        done += 1
    except PreconditionFailed:
        pass
print(done)
""",
        tmp_path,
        3,
    )
    assert bytes(bucket.read("counter").data) == b"180"


def test_directories_come_and_go_under_writers_of_other_processes(tmp_path):
    run_together(
        """
for number in range(100):
    key = f"deep/er/{int(me)}"
    bucket.write(key, [me], between_slices=pause)
    assert bytes(bucket.read(key).data) == me
    bucket.delete([key])
bucket.write(key, [me], between_slices=pause)
print(0)
""",
        tmp_path,
        3,
    )
    assert keys_of(Directory.open(tmp_path)) == ["deep/er/0", "deep/er/1", "deep/er/2"]


def test_a_writer_that_is_killed_leaves_no_object(tmp_path):
    script = """
import os
slices = iter([True] * 3)
bucket.write("key", [bytes(10_000_000)], between_slices=lambda: next(slices, None) or os.kill(os.getpid(), 9))
"""
    killed = subprocess.run([sys.executable, "-c", RACE_PRELUDE + script, tmp_path, "0"], input="go\n", text=True)
    assert killed.returncode == -signal.SIGKILL
    assert len(staged(tmp_path)) == 1
    bucket = Directory.open(tmp_path)
    assert keys_of(bucket) == []
    with pytest.raises(NotFound):
        bucket.read("key")


def test_only_old_leftovers_are_removed_when_the_directory_is_opened(tmp_path):
    Directory.open(tmp_path)
    staging = tmp_path / ".kafscale" / "staging"
    for name, age_seconds in (("old", STAGING_STALE_SECONDS + 60), ("being-written", STAGING_STALE_SECONDS - 60)):
        (staging / name).write_bytes(b"half")
        os.utime(staging / name, (time.time() - age_seconds,) * 2)
    bucket = Directory.open(tmp_path)
    assert staged(tmp_path) == ["being-written"]
    assert keys_of(bucket) == []


def test_a_file_is_synced_before_its_link_and_the_directories_afterwards(tmp_path, monkeypatch):
    bucket = Directory.open(tmp_path)
    events = []

    def spy(name, describe):
        original = getattr(os, name)

        def call(*args):
            events.append((name, describe(*args)))
            return original(*args)

        monkeypatch.setattr(os, name, call)

    def path_of(fd):
        return os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path).split("/staging/")[0]

    spy("fsync", path_of)
    spy("link", lambda source, target: os.path.relpath(os.fsdecode(target), tmp_path))
    bucket.write_if_absent("a/b/key", [b"data"], between_slices=no_pause)
    link = ("link", "a/b/key")
    parents = [("fsync", "a/b"), ("fsync", "a"), ("fsync", ".")]
    assert events == [("fsync", ".kafscale"), link, *parents]

    events.clear()
    bucket.write_if_absent("a/b/key2", [b"data"], between_slices=no_pause)  # the directories are durable already
    assert events == [("fsync", ".kafscale"), ("link", "a/b/key2"), ("fsync", "a/b")]

    bucket.delete(["a/b/key", "a/b/key2"])  # and the directories
    events.clear()
    bucket.write_if_absent("a/b/key", [b"data"], between_slices=no_pause)
    assert events == [("fsync", ".kafscale"), link, *parents]


@pytest.mark.parametrize("condition", ["absent", "match"])
def test_a_refused_write_syncs_the_directories_of_an_earlier_failed_sync(tmp_path, monkeypatch, condition):
    """Who reads it back then finds that it has succeeded; its directories were not on the disk, and a rename never."""
    bucket = Directory.open(tmp_path)
    etag = "" if condition == "absent" else bucket.write("a/b/key", [b"before"], between_slices=no_pause)
    synced = []

    def sync(path):
        if not synced:
            synced.append("failed")
            raise OSError(errno.EMFILE, "too many open files")
        synced.append(os.path.relpath(path, bytes(tmp_path)))

    monkeypatch.setattr(directory_module, "_sync_directory", sync)

    def write():
        if condition == "absent":
            bucket.write_if_absent("a/b/key", [b"data"], between_slices=no_pause)
        else:
            bucket.write_if_match("a/b/key", [b"data"], etag, between_slices=no_pause)

    with pytest.raises(StoreUnavailable):
        write()
    with pytest.raises(PreconditionFailed):
        write()
    assert bytes(bucket.read("a/b/key").data) == b"data"
    assert synced == ["failed", b"a/b"] + ([b"a", b"."] if condition == "absent" else [])


def test_a_directory_that_another_process_has_removed_is_synced_again(tmp_path, monkeypatch):
    bucket, other = Directory.open(tmp_path), Directory.open(tmp_path)
    bucket.write("a/b/key", [b""], between_slices=no_pause)
    other.delete(["a/b/key"])
    assert not (tmp_path / "a").exists()
    synced = []
    monkeypatch.setattr(
        directory_module, "_sync_directory", lambda path: synced.append(os.path.relpath(path, bytes(tmp_path)))
    )
    bucket.write("a/b/key", [b""], between_slices=no_pause)
    assert synced == [b"a/b", b"a", b"."]


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        (errno.ENOSPC, StoreUnavailable, "disk is full"),
        (errno.EDQUOT, StoreUnavailable, "disk is full"),
        (errno.EIO, StoreUnavailable, "disk failed"),
        (errno.EACCES, AccessDenied, "may not"),
        (errno.EROFS, AccessDenied, "may not"),
    ],
)
def test_a_write_that_the_disk_refuses_leaves_nothing(tmp_path, monkeypatch, code, expected, words):
    bucket = Directory.open(tmp_path)
    original = os.writev
    slices = iter(range(2))

    def fail_second(fd, buffers):
        if next(slices) == 1:
            raise OSError(code, os.strerror(code))
        return original(fd, buffers)

    monkeypatch.setattr(os, "writev", fail_second)
    with pytest.raises(expected, match=f"^a/key: .*{words}"):
        bucket.write("a/key", [bytes(3 * SLICE_BYTES)], between_slices=no_pause)
    assert staged(tmp_path) == []
    assert keys_of(bucket) == []


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    original = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: original(fd, [memoryview(b"".join(buffers))[:5]]))
    bucket = Directory.open(tmp_path)
    bucket.write("key", [b"0123", b"4567", b"89"], between_slices=no_pause)
    assert bucket.read("key").data == b"0123456789"


def test_a_large_write_asks_between_slices_and_can_be_given_up(tmp_path):
    bucket = Directory.open(tmp_path)
    asked = []

    class GivenUp(Exception):
        pass

    def ask():
        asked.append(len(staged(tmp_path)))
        if len(asked) == 3:
            raise GivenUp

    with pytest.raises(GivenUp):
        bucket.write("a/key", [bytes(10 * SLICE_BYTES)], between_slices=ask)
    assert asked == [1, 1, 1]
    assert staged(tmp_path) == []
    assert not (tmp_path / "a").exists()


def test_an_etag_stays_over_a_restart_and_changes_with_equal_content(tmp_path):
    bucket = Directory.open(tmp_path)
    etags = [bucket.write("key", [b"same"], between_slices=no_pause) for _ in range(50)]
    assert len(set(etags)) == 50
    assert Directory.open(tmp_path).info("key").etag == etags[-1]


def test_an_etag_has_the_nanosecond_and_not_the_kernels_tick(tmp_path, monkeypatch):
    """An inode that is freed and used again within a tick would give two writes of one size the same ETag."""
    times_ns = iter([1_700_000_000_123_456_789, 1_700_000_000_123_456_790])
    monkeypatch.setattr(time, "time_ns", lambda: next(times_ns))
    bucket = Directory.open(tmp_path)
    etags = [bucket.write("key", [b"same"], between_slices=no_pause) for _ in range(2)]
    assert int(etags[1].split("-")[1], 16) - int(etags[0].split("-")[1], 16) == 1
    assert bucket.info("key").modified_ms == 1_700_000_000_123


def test_a_key_that_is_the_beginning_of_another_is_refused(tmp_path):
    bucket = Directory.open(tmp_path)
    bucket.write("a/b", [b"1"], between_slices=no_pause)
    for key in ("a", "a/b/c", "a/b/c/d", "n" * 300):
        for write in (bucket.write, bucket.write_if_absent):
            with pytest.raises(StoreError, match="can't hold an object of this name"):
                write(key, [b"2"], between_slices=no_pause)
    assert keys_of(bucket) == ["a/b"]
    assert staged(tmp_path) == []


def test_files_of_the_file_store_itself_and_links_are_out_of_reach(tmp_path):
    bucket = Directory.open(tmp_path)
    with pytest.raises(ValueError, match="file store's own"):
        bucket.write(".kafscale/lock", [b""], between_slices=no_pause)
    (tmp_path / "outside").write_bytes(b"secret")
    os.symlink(tmp_path / "outside", tmp_path / "link")
    with pytest.raises(StoreError):
        bucket.read("link")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"")
    assert keys_of(bucket) == ["outside"]


def test_a_listing_reads_only_directories_that_can_match(tmp_path, monkeypatch):
    bucket = Directory.open(tmp_path)
    for topic in ("a", "b", "c"):
        for partition in range(3):
            bucket.write(f"ns/{topic}/{partition}/segment", [b""], between_slices=no_pause)
    read = []
    original = os.scandir
    monkeypatch.setattr(
        os, "scandir", lambda path: read.append(os.path.relpath(path, bytes(tmp_path))) or original(path)
    )
    assert keys_of(bucket, "ns/b/1/") == ["ns/b/1/segment"]
    assert read == [b"ns/b/1"]
    read.clear()
    assert keys_of(bucket, "ns/b") == [f"ns/b/{partition}/segment" for partition in range(3)]
    assert read == [b"ns", b"ns/b", b"ns/b/0", b"ns/b/1", b"ns/b/2"]
    read.clear()
    assert keys_of(bucket, "", "ns/c/1/segment") == ["ns/c/2/segment"]
    assert read == [b".", b"ns", b"ns/c", b"ns/c/1", b"ns/c/2"]


def test_an_object_deleted_during_a_listing_is_left_out(tmp_path):
    bucket = Directory.open(tmp_path)
    for name in ("1", "2", "3"):
        bucket.write(f"a/{name}", [b""], between_slices=no_pause)
    walk = bucket.walk("a/", "")
    assert next(walk).key == "a/1"
    bucket.delete(["a/2"])
    assert [info.key for info in walk] == ["a/3"]


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        Directory.open(tmp_path / "file" / "bucket")
