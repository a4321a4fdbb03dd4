"""kcat (librdkafka as Debian has it), as a person uses it at a terminal. Left out where it is not installed."""

import json
import subprocess
import threading

import pytest

from tests.devtools.external.clients import CODECS, DEADLINE_SECONDS, wait_until
from tests.devtools.processes.process import broker_process


def kcat(broker, *arguments, send=None, code=0):
    """What it wrote to stdout; or to stderr, where it must fail with `code`."""
    command = ["kcat", "-b", broker.bootstrap, *arguments]
    done = subprocess.run(command, input=send, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def read(broker, topic, *arguments):
    """All messages, as the objects that kcat makes of them."""
    return [json.loads(line) for line in kcat(broker, "-C", "-t", topic, "-e", "-q", "-J", *arguments).splitlines()]


class Member:
    """kcat in a group: its lines are collected by threads, which end with it."""

    def __init__(self, broker, group, topic, *arguments):
        command = ["kcat", "-b", broker.bootstrap, "-X", "heartbeat.interval.ms=200", "-X", "fetch.wait.max.ms=50"]
        command += ["-X", "auto.offset.reset=earliest", "-u", *arguments, "-G", group, topic]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.values, self.notes = [], []
        self.threads = [
            threading.Thread(target=lines.extend, args=(stream,))
            for lines, stream in ((self.values, self.process.stdout), (self.notes, self.process.stderr))
        ]
        for thread in self.threads:
            thread.start()

    @property
    def partitions(self):
        """How many it was given by the last rebalance."""
        assigned = [note for note in self.notes if "assigned: " in note]
        return assigned[-1].partition("assigned: ")[2].count("[") if assigned else 0

    def leave(self):
        self.process.terminate()
        self.process.wait(DEADLINE_SECONDS)
        for thread in self.threads:
            thread.join(DEADLINE_SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.mark.parametrize("codec", CODECS)
def test_sent_records_read_back_unchanged(broker, name, codec):
    kcat(
        broker, "-P", "-t", name, "-z", codec, "-K:", "-Z", "-H", "a=1", "-H", "b=2", send="key:value\n:no key\nnull:\n"
    )
    kcat(
        broker,
        "-P",
        "-t",
        name,
        "-z",
        codec,
        "-D;",
        send=";".join(f"{number} " + "compress " * 50 for number in range(50)),
    )
    first, second, third, *others = read(broker, name)
    assert (first["key"], first["payload"], first["headers"]) == ("key", "value", ["a", "1", "b", "2"])
    assert (second["key"], second["payload"]) == (None, "no key")
    assert (third["key"], third["payload"]) == ("null", None)
    assert [each["payload"].split()[0] for each in others] == [str(number) for number in range(50)]
    assert [each["offset"] for each in (first, second, third, *others)] == list(range(53))


def test_two_members_share_all_partitions_and_lose_nothing(name):
    with broker_process("--default-partitions", "4") as broker:
        send_numbers(broker, name, 0, 200)
        first = Member(broker, name, name)
        try:
            wait_until(lambda: first.partitions == 4 and len(first.values) == 200, "all for the first member")
            second = Member(broker, name, name)
            try:
                wait_until(lambda: first.partitions == second.partitions == 2, "half for each")
                send_numbers(broker, name, 200, 400)
                wait_until(lambda: len(first.values) + len(second.values) == 400, "messages by both")
            finally:
                second.leave()
            wait_until(lambda: first.partitions == 4, "all for the first again")
            send_numbers(broker, name, 400, 500)
            wait_until(lambda: len(first.values) + len(second.values) >= 500, "all messages")
        finally:
            first.leave()
    assert sorted(int(value) for value in first.values + second.values) == list(range(500))


def send_numbers(broker, topic, begin, end):
    lines = "".join(f"{number}:{number}\n" for number in range(begin, end))  # the key spreads them
    kcat(broker, "-P", "-t", topic, "-K:", "-X", "enable.idempotence=true", send=lines)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_a_group_resumes_at_its_offsets_after_a_broker_restart(own_broker, name, kill):
    send_numbers(own_broker, name, 0, 10)
    group = ["-X", "auto.offset.reset=earliest", "-q", "-u"]
    assert kcat(own_broker, *group, "-c", "7", "-G", name, name).split() == [str(number) for number in range(7)]
    own_broker.restart(kill=kill)
    assert kcat(own_broker, *group, "-c", "3", "-G", name, name).split() == ["7", "8", "9"]


def test_messages_are_found_by_time_and_offset(broker, name):
    send_numbers(broker, name, 0, 5)
    times = [each["ts"] for each in read(broker, name)]
    assert f"{name} [0] offset 0" in kcat(broker, "-Q", "-t", f"{name}:0:{times[0]}")
    assert f"{name} [0] offset -1" in kcat(broker, "-Q", "-t", f"{name}:0:{times[-1] + 1}")
    assert [each["offset"] for each in read(broker, name, "-o", f"s@{times[0]}")] == [0, 1, 2, 3, 4]
    assert [each["offset"] for each in read(broker, name, "-o", "-2")] == [3, 4]


def test_the_cluster_and_its_topics_are_listed(broker, name):
    send_numbers(broker, name, 0, 1)
    listed = json.loads(kcat(broker, "-L", "-J"))
    assert [each["id"] for each in listed["brokers"]] == [*broker.broker_ids]
    assert ",".join(each["name"] for each in listed["brokers"]) == broker.bootstrap
    (topic,) = [each for each in listed["topics"] if each["topic"] == name]
    (partition,) = topic["partitions"]
    assert partition["partition"] == 0
    assert partition["leader"] in broker.broker_ids


def test_a_transactional_producers_records_are_visible_to_read_committed(broker, name):
    said = kcat(broker, "-P", "-t", name, "-X", f"transactional.id={name}", send="one\ntwo\n")
    assert said == ""
    committed = (
        "-C",
        "-t",
        name,
        "-e",
        "-q",
        "-o",
        "beginning",
        "-f",
        "%o %s\n",
        "-X",
        "isolation.level=read_committed",
    )
    assert kcat(broker, *committed) == "0 one\n1 two\n"
    kcat(broker, "-P", "-t", name, send="three\n")
    assert kcat(broker, *committed).splitlines()[-1] == "3 three"  # behind the marker
