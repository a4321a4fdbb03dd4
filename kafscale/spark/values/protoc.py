"""Text of a `.proto` file through protoc, which runs in a process of its own.

There is no library that makes descriptors of text without files: those for Python give a syntax tree, and Google's
compiler and the one in Rust read files. So protoc stays, and what a registry says reaches it as content alone: the
files that it reads have names that are written here, in a directory that nobody else may look into, and their imports
come as descriptors. A text that makes protoc crash, hang or grow ends that process, and is an error of the schema.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import descriptor_pb2

from kafscale.errors import DecodeError, RegistryError
from kafscale.spark.values.columns import TEXT_MAX_CHARACTERS

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
    """Return what protoc makes of a text, under the name SOURCE. known: the files that it imports, but for protoc's
    own.

    Raises DecodeError; RegistryError where it is the machine that is wrong, so that another try may do.
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
    """Raises DecodeError."""
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
    """The directory that grpc_tools is in. Raises DecodeError if it is not installed."""
    found = importlib.util.find_spec("grpc_tools")
    if found is None or not found.submodule_search_locations:
        raise DecodeError("a Protobuf schema that is text needs the package grpcio-tools")
    return str(Path(next(iter(found.submodule_search_locations))).parent)
