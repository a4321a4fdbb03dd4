"""Makes message classes of a registry's Protobuf schemas: base64 descriptors directly, `.proto` text by protoc.

No library makes descriptors of text without files, so protoc runs in a process of its own. It gets a registry's text
only as content: its files have names given here, in a private directory, and imports come as descriptors. A text that
makes protoc crash, hang or grow ends that process, and is an error of the schema.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor

from kafscale.errors import DecodeError, RegistryError
from kafscale.values.limits import TEXT_MAX_CHARACTERS, error_text
from kafscale.values.registry import Schema
from kafscale.wire.primitives import read_varlong

SOURCE = "kafscale-value.proto"  # a name that no import has
TEXT_MAX_BYTES = 4 << 20
PROTOC_SECONDS = 60
PROTOC_CPU_SECONDS = 30
PROTOC_MEMORY_BYTES = 2 << 30
PROTOC_FILE_BYTES = 64 << 20

# -I leaves out the working directory, PYTHONPATH and the user's own packages; the package is found where it is here.
_PROGRAM = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_CPU, ({PROTOC_CPU_SECONDS}, {PROTOC_CPU_SECONDS}))
resource.setrlimit(resource.RLIMIT_AS, ({PROTOC_MEMORY_BYTES}, {PROTOC_MEMORY_BYTES}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({PROTOC_FILE_BYTES}, {PROTOC_FILE_BYTES}))
sys.path.append(sys.argv.pop(1))
runpy.run_module("grpc_tools.protoc", run_name="__main__")
"""


def compiled(text: str, known: Iterable[descriptor_pb2.FileDescriptorProto]) -> descriptor_pb2.FileDescriptorProto:
    """Compile a text by protoc, under the name SOURCE. known: the files that it imports, except protoc's own.

    Raises DecodeError; RegistryError for a failure of the machine, so that another try may succeed.
    """
    content = text.encode("utf-8", "surrogatepass")
    if len(content) > TEXT_MAX_BYTES:
        raise DecodeError(f"a Protobuf schema of {len(content)} bytes is larger than {TEXT_MAX_BYTES}")
    try:
        return _compiled(content, descriptor_pb2.FileDescriptorSet(file=known))
    except OSError as exc:
        raise RegistryError(
            f"a Protobuf schema can't be compiled on this machine: {exc}; it takes a process, and some temporary files"
        ) from exc


def _compiled(content: bytes, known: descriptor_pb2.FileDescriptorSet) -> descriptor_pb2.FileDescriptorProto:
    with tempfile.TemporaryDirectory(prefix="kafscale-protoc-") as private:  # of mode 0700
        folder, imports, result = Path(private, "source"), Path(private, "imports.pb"), Path(private, "result.pb")
        folder.mkdir()
        (folder / SOURCE).write_bytes(content)
        imports.write_bytes(known.SerializeToString())
        _run([f"--proto_path={folder}", f"--descriptor_set_in={imports}", f"--descriptor_set_out={result}"])
        return descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes()).file[0]


def _run(options: list[str]) -> None:
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, _packages(), *options, SOURCE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            timeout=PROTOC_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise DecodeError(f"protoc (of the package grpcio-tools) did not end in {PROTOC_SECONDS} s") from exc
    if ran.returncode:
        told = " ".join(ran.stderr.decode("utf-8", "replace").split())[-TEXT_MAX_CHARACTERS:]
        raise DecodeError(f"protoc (of the package grpcio-tools) refuses the schema ({ran.returncode}): {told}")


def _packages() -> str:
    found = importlib.util.find_spec("grpc_tools")
    if found is None or not found.submodule_search_locations:
        raise DecodeError("a Protobuf schema that is text needs the package grpcio-tools")
    return str(Path(next(iter(found.submodule_search_locations))).parent)


# What serializers register no reference for. Modules of these names are imported: the names are to have no tricks.
BUILT_IN = re.compile(r"(google/protobuf|google/type|confluent)(/[a-z][a-z0-9_]*)+\.proto", re.ASCII)

Files = dict[str, descriptor_pb2.FileDescriptorProto]


def load(schema: Schema) -> FileDescriptor:
    """Return the file of a schema.

    Raises DecodeError if it, or an import, is invalid; RegistryError if protoc can't run now.
    """
    if schema.format != "PROTOBUF":
        raise DecodeError(f"{schema} is of type {schema.format}, not PROTOBUF")
    files: Files = {}
    try:
        _collect(schema, SOURCE, files)
        pool = descriptor_pool.DescriptorPool()
        added: set[str] = set()
        _add(pool, SOURCE, files, added)
        return pool.FindFileByName(SOURCE)
    except (DecodeError, RegistryError):
        raise
    except Exception as exc:  # protobuf's implementations raise different types
        raise DecodeError(f"{schema} is not a valid Protobuf schema: {error_text(exc)}") from exc


def _collect(schema: Schema, name: str, files: Files) -> None:
    for reference in schema.references:
        if reference.name not in files:
            _collect(reference.schema, reference.name, files)
    file = _from_base64(schema.text) or compiled(schema.text, _with_built_ins(schema.text, files))
    file.name = name
    files[name] = file
    for imported in file.dependency:
        _collect_built_in(imported, files)


def _from_base64(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except Exception:  # binascii.Error, or what protobuf raises: then it is text
        return None


def _collect_built_in(name: str, files: Files) -> None:
    if name in files or not BUILT_IN.fullmatch(name):
        return
    file = descriptor_pb2.FileDescriptorProto()
    _built_in(name).CopyToProto(file)
    files[name] = file
    for imported in file.dependency:
        _collect_built_in(imported, files)


def _built_in(name: str) -> FileDescriptor:
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    for package in ("", "confluent_kafka.schema_registry."):
        try:
            return importlib.import_module(package + module).DESCRIPTOR
        except ImportError:
            continue
    raise DecodeError(f"{name} is imported without a reference, and no installed package has it")


def _add(pool: descriptor_pool.DescriptorPool, name: str, files: Files, added: set[str]) -> None:
    if name in added:
        return
    added.add(name)
    if name not in files:
        raise DecodeError(f"{name} is imported, but the schema has no reference of that name")
    for imported in files[name].dependency:
        _add(pool, imported, files, added)
    pool.Add(files[name])


def _with_built_ins(text: str, files: Files) -> list[descriptor_pb2.FileDescriptorProto]:
    known = dict(files)
    for word in text.replace("'", '"').split('"'):
        if BUILT_IN.fullmatch(word):
            _collect_built_in(word, known)
    return list(known.values())


def message_at(file: FileDescriptor, indexes: tuple[int, ...]) -> Descriptor:
    """Return the message that a value's indexes name: of the file's, then of the nested ones. Raises DecodeError."""
    messages = list(file.message_types_by_name.values())
    message: Descriptor | None = None
    for index in indexes:
        if not 0 <= index < len(messages):
            raise DecodeError(f"the schema has no message at {list(indexes)}")
        message = messages[index]
        messages = list(message.nested_types)
    assert message is not None, "indexes are never empty"
    return message


def message_named(file: FileDescriptor, name: str) -> Descriptor | None:
    """Return the message with this full name, also a nested one."""
    pending = list(file.message_types_by_name.values())
    while pending:
        message = pending.pop()
        if message.full_name == name:
            return message
        pending.extend(message.nested_types)
    return None


def read_indexes(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message indexes before a payload and their end: zigzag varints, first their count; one 0 means [0].

    Raises DecodeError if they are cut off.
    """
    try:
        count, position = read_varlong(payload, 0)
        if count == 0:
            return (0,), position
        if not 0 < count <= len(payload):
            raise DecodeError(f"the count of the message indexes is {count}")
        indexes = []
        for _ in range(count):
            index, position = read_varlong(payload, position)
            indexes.append(index)
    except IndexError as exc:
        raise DecodeError("the message indexes are cut off") from exc
    return tuple(indexes), position
