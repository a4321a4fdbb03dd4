"""The pages of messages, with records, transactions and values of confluent-kafka and kafka-python."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from html import unescape

import confluent_kafka
import httpx
import pyarrow.parquet as pq
import pytest

from kafscale.config import Address
from kafscale.console.messages import query, reading, showing
from kafscale.console.settings import ConsoleSettings
from kafscale.console.web.app import make_app
from kafscale.testing.background_broker import BackgroundBroker
from kafscale.testing.secured_broker import SecuredBroker
from tests.console.browsing import send
from tests.devtools.external.registry import running_values

with warnings.catch_warnings():  # kafka-python reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans end by their counts, also on a busy machine."""
    monkeypatch.setattr(query, "SCAN_SECONDS", 60.0)


def produce(bootstrap: str, topic: str, *values: str | bytes | None, partition: int = 0, **options: object) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 4 << 20})
    for value in values:
        producer.produce(topic, value=value, partition=partition, **options)
    producer.flush()


def offsets(text: str) -> list[str]:
    return re.findall(r'<th scope="row" class="number"><a [^>]*>(\d+)</a>', text)


def next_part(text: str) -> str:
    found = re.search(r'<a rel="next" href="([^"]+)"', text)
    assert found is not None, text
    return unescape(found[1])


async def test_the_newest_messages_come_first_and_older_ones_by_a_link(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders", partitions=2)
    for number in range(60):
        produce(kafscale_broker.bootstrap, "orders", f"v{number}", partition=number % 2, timestamp=1_000 + number)
    text = (await pages.get("/topics/orders/messages?limit=20")).text
    assert re.findall(r"<pre>(v\d+)</pre>", text) == [f"v{number}" for number in range(59, 39, -1)]
    text = (await pages.get(next_part(text))).text
    assert re.findall(r"<pre>(v\d+)</pre>", text) == [f"v{number}" for number in range(39, 19, -1)]
    text = (await pages.get(next_part(text))).text
    assert re.findall(r"<pre>(v\d+)</pre>", text) == [f"v{number}" for number in range(19, -1, -1)]
    assert "This is all." in text


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("start=beginning", range(20)),
        ("start=offset&offset=95", range(95, 100)),
        ("start=time&time=1970-01-01T00:00:01.090", range(90, 100)),
        ("start=time&time=1098", range(98, 100)),
        ("start=offset&offset=9999", range(0)),
    ],
)
async def test_messages_are_read_from_an_offset_or_a_time(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, start: str, expected: range
) -> None:
    kafscale_broker.create_topic("orders")
    producer = confluent_kafka.Producer({"bootstrap.servers": kafscale_broker.bootstrap})
    for number in range(100):
        producer.produce("orders", value=f"v{number}", timestamp=1_000 + number)
    producer.flush()
    text = (await pages.get(f"/topics/orders/messages?limit=20&{start}")).text
    assert re.findall(r"<pre>v(\d+)</pre>", text) == list(map(str, expected))


async def test_a_scan_is_bounded_and_goes_on_where_it_stopped(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "SCAN_MAX_COUNT", 40)
    kafscale_broker.create_topic("orders", partitions=2)
    for partition in (0, 1):
        values = [f"needle-{partition}" if number == 45 else "hay" for number in range(50)]
        produce(kafscale_broker.bootstrap, "orders", *values, partition=partition)
    text = (await pages.get("/topics/orders/messages?start=beginning&value=needle")).text
    assert "Scanned 40 of 100 offsets." in text
    assert offsets(text) == []
    found = []
    for scanned in ("Scanned 80 of 100 offsets.", "Scanned 100 of 100 offsets."):
        text = (await pages.get(next_part(text))).text
        assert scanned in text
        found += re.findall(r"<pre>(needle-\d)</pre>", text)
    assert sorted(found) == ["needle-0", "needle-1"]
    assert "This is all." in text


ORDER = json.dumps({"order": {"lines": [{"sku": "a"}, {"sku": "b", "count": 2}], "paid": True}})


@pytest.mark.parametrize(
    ("wanted", "is_found"),
    [
        ({"key": "CUSTOMER"}, True),
        ({"key": "other"}, False),
        ({"value": '"sku": "b"'}, True),
        ({"header": "trace=ab"}, True),
        ({"header": "trace=b"}, False),
        ({"path": "$.order.lines[*].sku", "equals": "b"}, True),
        ({"path": "order.lines[0].sku", "equals": "b"}, False),
        ({"path": "$..count", "equals": "2"}, True),
        ({"path": "$['order']['paid']", "equals": "true"}, True),
        ({"path": "$.order.lines[-1].count"}, True),
        ({"path": "$.order.missing"}, False),
        ({"key": "customer", "path": "$.order.lines[5]"}, False),
    ],
)
async def test_filters(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, wanted: dict[str, str], is_found: bool
) -> None:
    kafscale_broker.create_topic("orders")
    produce(kafscale_broker.bootstrap, "orders", "not JSON", b"[" * 100_000, None)
    produce(kafscale_broker.bootstrap, "orders", ORDER, key="customer-1", headers=[("trace", b"abc"), ("empty", None)])
    for start in ("newest", "beginning"):
        answer = await pages.get("/topics/orders/messages", params={"start": start, **wanted})
        assert offsets(answer.text) == (["3"] if is_found else [])


@pytest.mark.parametrize(
    "wrong",
    [
        "path=$[?(@.a)]",
        "path=$..a..b",
        "start=never",
        "partition=7",
        "offset=-1",
        "offset=99999999999999999999",
        "at=x",
        "time=yesterday&start=time",
        "limit=51",
        "value_as=xml",
        "before=1e9",
    ],
)
async def test_a_wrong_query_says_what_is_allowed(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, wrong: str
) -> None:
    kafscale_broker.create_topic("orders")
    answer = await pages.get(f"/topics/orders/messages?{wrong}")
    assert answer.status_code == 400
    assert "This failed" in answer.text


async def test_aborted_and_open_transactions_and_markers_are_shown(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders")
    producers = []
    for name, end in (("a", "abort_transaction"), ("b", "commit_transaction"), ("c", None)):
        settings = {"bootstrap.servers": kafscale_broker.bootstrap, "transactional.id": name}
        producer = confluent_kafka.Producer(settings)
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", value=f"of {name}")
        producer.flush()
        if end is not None:
            getattr(producer, end)()
        producers.append(producer)
    produce(kafscale_broker.bootstrap, "orders", "behind the stable end")
    text = (await pages.get("/topics/orders/messages?start=beginning")).text
    rows = re.findall(r"<tr.*?</tr>", text.partition("<tbody>")[2], re.DOTALL)
    shown = [re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", row)) for row in rows]
    for row, parts in zip(
        shown,
        [
            ("aborted", "of a"),
            ("abort marker",),
            ("of b",),
            ("commit marker",),
            ("open transaction", "of c"),
            ("behind",),
        ],
        strict=True,
    ):
        assert all(part in row for part in parts), row
    assert "aborted" not in shown[2]
    assert "open" not in shown[5]
    assert "open transaction" in (await pages.get("/topics/orders/messages?start=newest&value=of")).text
    assert "abort marker" in (await pages.get("/topics/orders/messages/0/1")).text
    producers[-1].abort_transaction()


async def test_hostile_keys_values_and_headers_are_data(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders")
    producer = kafka.KafkaProducer(bootstrap_servers=kafscale_broker.bootstrap)
    producer.send("orders", key=HOSTILE.encode(), value=HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
    producer.send("orders", value="\u202eevil\u2066 \x1b[31m\x00".encode())
    producer.send("orders", key=b"\xff\xfe", value=b"\xc3\x28 invalid", headers=[("h", b"\xff")])
    producer.send("orders", key=b"gone", value=None)
    producer.flush()
    producer.close()
    for path in ("", "/0/0", "/0/1", "/0/2", "/0/3", "?value_as=text", "?value_as=hex&key_as=json"):
        text = (await pages.get(f"/topics/orders/messages{path}")).text
        assert "<script>alert" not in text
        assert not set(text) & set("\u202e\u2066\x1b\x00")
        assert not re.search(r"<style|style=|\son[a-z]+=|<script(?! type=\"module\" src=\"/static/)", text)
    text = (await pages.get("/topics/orders/messages")).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\\u202eevil\\u2066 \\x1b[31m\\x00" in text
    assert "c3 28 20 69 6e" in text  # what is not UTF-8 is shown as bytes
    assert "\\xc3( invalid" in (await pages.get("/topics/orders/messages?value_as=text")).text
    assert ">tombstone<" in text
    assert ">null<" in text


async def test_a_large_value_is_cut_and_shown_whole_on_its_own_page(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders", config={"max.message.bytes": str(2 << 20)})
    value = "<b>" * 350_000
    produce(kafscale_broker.bootstrap, "orders", *[value] * 40)
    text = (await pages.get("/topics/orders/messages?limit=50")).text
    assert len(text) < 40 * 10 * showing.CUT_COUNT + 20_000
    assert "Show all 1\u2009050\u2009000 characters" in text
    assert offsets(text)[0] == "39"
    text = (await pages.get("/topics/orders/messages/0/39")).text
    assert text.count("&lt;b&gt;") == 350_000
    answer = await pages.get("/topics/orders/messages/0/39/value")
    assert answer.content == value.encode()
    assert answer.headers["content-disposition"] == 'attachment; filename="orders-0-39.bin"'
    assert answer.headers["content-type"] == "application/octet-stream"


async def test_a_page_holds_a_bounded_number_of_bytes(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest message is shown even if the window of the newest ones is too large."""
    monkeypatch.setattr(reading, "FOUND_MAX_BYTES", 10_000)
    kafscale_broker.create_topic("orders")
    produce(kafscale_broker.bootstrap, "orders", *["x" * 1_000] * 100)
    found = offsets((await pages.get("/topics/orders/messages?limit=500")).text)
    assert found[0] == "99"
    assert len(found) < 20
    assert len(offsets((await pages.get("/topics/orders/messages?limit=500&start=beginning")).text)) == 10


async def test_a_message_that_is_not_there(pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker) -> None:
    kafscale_broker.create_topic("orders")
    produce(kafscale_broker.bootstrap, "orders", "v")
    assert "it has 0 to 0" in (await pages.get("/topics/orders/messages/0/1")).text
    for place in ("0/1", "1/0", "0/x", f"0/{'9' * 5000}", "99999999999/0"):
        assert (await pages.get(f"/topics/orders/messages/{place}")).status_code in (400, 404), place


async def test_the_live_tail_shows_each_new_message_once(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders", partitions=2)
    produce(kafscale_broker.bootstrap, "orders", "old")
    text = (await pages.get("/topics/orders/messages?start=tail&value=new")).text
    assert ">old<" not in text
    cursor = unescape(re.findall(r'data-next="([^"]+)"', text)[0])
    seen = []
    for values in (["new-1", "other"], ["new-2"], [], ["new-3"]):
        produce(kafscale_broker.bootstrap, "orders", *values, partition=len(values) % 2)
        text = (await pages.get(f"/fragments/messages/orders?{cursor}")).text
        cursor = unescape(re.findall(r'data-next="([^"]+)"', text)[0])
        seen.append(re.findall(r"<pre>(.*?)</pre>", text))
    assert seen == [["new-1"], ["new-2"], [], ["new-3"]]


async def test_records_are_written_and_refused(pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker) -> None:
    kafscale_broker.create_topic("orders", partitions=2)
    written = [
        {"key_form": "text", "key": "k", "value": "a\r\nb", "value_form": "text", "headers": "one: 1\r\ntwo: a:b"},
        {"key_form": "hex", "key": "00 ff", "value_form": "null", "partition": "1"},
        {"key_form": "null", "value": '{"a": 1}', "value_form": "json", "partition": "1"},
        {"key_form": "null", "value": "", "value_form": "text", "partition": "1"},
    ]
    for fields in written:
        answer = await send(pages, "/topics/orders/messages", **fields)
        assert answer.status_code == 303
    assert answer.headers["location"] == "/topics/orders/messages?start=offset&offset=2&partition=1"
    assert "The record is at offset 2 of partition 1." in (await pages.get(answer.headers["location"])).text
    first, *others = sorted(kafscale_broker.records("orders"), key=lambda record: (record.key != b"k", record.offset))
    assert (first.key, first.value, first.headers) == (b"k", b"a\nb", (("one", b"1"), ("two", b"a:b")))
    assert [(r.key, r.value) for r in others] == [(b"\x00\xff", None), (None, b'{"a": 1}'), (None, b"")]
    for refused in (
        {"value": "{", "value_form": "json"},
        {"value": "zz", "value_form": "hex"},
        {"value": "a", "value_form": "null"},
        {"value": "a", "value_form": "xml"},
        {"value": "a", "partition": "9"},
        {"value": "a", "headers": "no separator"},
    ):
        assert (await send(pages, "/topics/orders/messages", **refused)).status_code in (400, 404), refused
    assert len(kafscale_broker.records("orders")) == len(written)


async def test_downloads_are_what_the_consumer_writes(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, run_kafscale: Callable[..., str]
) -> None:
    kafscale_broker.create_topic("orders")
    produce(
        kafscale_broker.bootstrap,
        "orders",
        "für\u2028",
        b"\xff",
        None,
        key=b"\xfe",
        headers=[("h", b"\xff"), ("n", None)],
    )
    produce(kafscale_broker.bootstrap, "orders", "other")
    answer = await pages.get("/topics/orders/download?start=beginning")
    assert answer.headers["content-disposition"] == 'attachment; filename="orders.jsonl"'
    lines = [json.loads(line) for line in answer.content.splitlines()]
    told = run_kafscale("consume", "orders", "--from-beginning", "--json", "--bootstrap", kafscale_broker.bootstrap)
    assert lines == [json.loads(line) for line in told.split("\n") if line]
    table = pq.read_table(io.BytesIO((await pages.get("/topics/orders/download?format=parquet")).content))
    assert table["value"].to_pylist() == ["für\u2028".encode(), b"\xff", None, b"other"]
    assert table["headers"][0].as_py() == [{"name": "h", "value": b"\xff"}, {"name": "n", "value": None}]
    assert table["offset"].to_pylist() == [0, 1, 2, 3]
    filtered = await pages.get("/topics/orders/download?start=beginning&value=oth")
    assert [json.loads(line)["offset"] for line in filtered.content.splitlines()] == [3]


@pytest.fixture
def run_kafscale() -> Callable[..., str]:
    def run(*args: str) -> str:
        command = [sys.executable, "-m", "kafscale", *args]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    return run


async def test_without_arrow_the_button_names_the_extra(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafscale.console.messages.downloads.find_spec", lambda _name: None)
    kafscale_broker.create_topic("orders")
    text = (await pages.get("/topics/orders/messages")).text
    assert "Parquet needs the extra `sql`" in text
    assert (await pages.get("/topics/orders/download?format=parquet")).status_code == 400


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
async def test_the_copied_command_of_kcat_reads_the_same_records(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders")
    produce(kafscale_broker.bootstrap, "orders", *[f"v{number}" for number in range(10)])
    for place, expected in (
        ("?start=offset&offset=7&partition=0&limit=20", None),
        ("/0/7", ["v7"]),
        ("?start=newest&limit=20", [f"v{number}" for number in range(10)]),
    ):
        text = (await pages.get(f"/topics/orders/messages{place}")).text
        command = shlex.split(unescape(re.findall(r'data-copy="([^"]+)"', text)[0]))
        told = subprocess.run([*command, "-e"], check=True, capture_output=True, text=True, timeout=60)
        assert told.stdout.split() == (expected or ["v7", "v8", "v9"])


@pytest.fixture
async def registry_pages(kafscale_broker: BackgroundBroker) -> AsyncIterator[tuple[httpx.AsyncClient, object]]:
    with running_values() as values:
        settings = ConsoleSettings(bootstrap=[Address.parse(kafscale_broker.bootstrap)], registry=values.registry.url)
        app = make_app(settings)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            yield client, values
        await app.state.console.aclose()


async def test_values_are_decoded_by_the_registry_and_filtered(
    registry_pages: tuple[httpx.AsyncClient, object], kafscale_broker: BackgroundBroker
) -> None:
    pages, values = registry_pages
    kafscale_broker.create_topic("orders")
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "string"}],
    }
    produce(
        kafscale_broker.bootstrap, "orders", values.avro(schema, {"id": 7, "n": HOSTILE}), b"\0\0\0\0\x63garbage", b"\0"
    )
    text = unescape((await pages.get("/topics/orders/messages?start=beginning")).text)
    assert '{"id": 7, "n": "<script>alert(1)</script>' in text
    assert "the schema registry has no schema 99" in text
    assert "\\x00\\x00\\x00\\x00cgarbage" in text
    assert "<script>alert" not in (await pages.get("/topics/orders/messages?start=beginning")).text
    for path, expected in (("$.id&equals=7", ["0"]), ("$.id&equals=8", []), ("$.n", ["0"])):
        assert offsets((await pages.get(f"/topics/orders/messages?path={path}")).text) == expected
    assert '"id": 7,\n' in unescape((await pages.get("/topics/orders/messages/0/0")).text)


async def test_a_registry_that_does_not_answer_is_asked_once(
    registry_pages: tuple[httpx.AsyncClient, object], kafscale_broker: BackgroundBroker
) -> None:
    pages, values = registry_pages
    kafscale_broker.create_topic("orders")
    schema_id = values.registry.register("s", '"string"')
    prefix = b"\0" + schema_id.to_bytes(4, "big")
    produce(kafscale_broker.bootstrap, "orders", *[prefix + b"\x02a"] * 20)
    values.registry.failures = [401] * 5
    text = (await pages.get("/topics/orders/messages")).text
    assert text.count("refuses (HTTP 401)") == 20
    assert len(values.registry.failures) == 4


def produce_as_admin(broker: SecuredBroker) -> None:
    producer = confluent_kafka.Producer(broker.client_settings("admin"))
    producer.produce("orders", value="secret")
    producer.flush()


@pytest.mark.kafscale(protocol="SASL_PLAINTEXT")
async def test_a_user_without_read_sees_no_message_and_why(
    secured_pages: httpx.AsyncClient, kafscale_secured_broker: SecuredBroker
) -> None:
    kafscale_secured_broker.create_topic("orders")
    produce_as_admin(kafscale_secured_broker)
    kafscale_secured_broker.allow("alice", "describe", topic="orders")
    await secured_pages.post("/login", data={"mechanism": "SCRAM-SHA-512", "user": "alice", "password": "alice's"})
    text = (await secured_pages.get("/topics/orders/messages")).text
    assert "Needs the ACL Read on topic orders." in text
    assert 'disabled title="Needs the ACL Write on topic orders.">Write</button>' in text
    assert "-X sasl.username=alice" in text
    for path in ("/topics/orders/download", "/topics/orders/messages/0/0", "/fragments/messages/orders?at=0-0"):
        answer = await secured_pages.get(path)
        assert answer.status_code == 400
        assert "secret" not in text + answer.text
    kafscale_secured_broker.allow("alice", "write", topic="orders")
    answer = await send(secured_pages, "/topics/orders/messages", value="v", value_form="text", key_form="null")
    assert answer.status_code == 303
