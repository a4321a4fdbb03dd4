"""Generated Python source of one function, registered with `linecache` so that tracebacks show its lines."""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

# Elements of arrays between two pauses of code that works in pieces: some 0.1 to 0.5 ms.
PIECE_COUNT = 256


@attrs.define(kw_only=True, eq=False, repr=False)
class CodeSource:
    title: str  # names the function in tracebacks
    names: dict[str, Any]
    lines: list[str] = attrs.field(factory=list)
    depth: int = 0
    _counter: int = 0

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        self.add(line)
        self.depth += 1
        yield
        self.depth -= 1

    def count_element(self, weight: str) -> None:
        """Count `weight` elements, and pause after PIECE_COUNT of them."""
        self.add(f"piece += {weight}")
        with self.block(f"if piece >= {PIECE_COUNT}:"):
            self.add("piece = 0")
            self.add("yield")

    def pause(self) -> None:
        """Make the function a generator even if nothing in it is counted."""
        with self.block("if piece:"):
            self.add("yield")

    def variable(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}_{self._counter}"

    def bind(self, value: Any, stem: str) -> str:
        name = self.variable(stem)
        self.names[name] = value
        return name

    def bind_unpack(self, codes: str) -> str:
        return self.bind(struct.Struct(">" + codes).unpack_from, "unpack")

    def bind_pack(self, codes: str) -> str:
        return self.bind(struct.Struct(">" + codes).pack, "pack")

    def build(self, function: str) -> Callable[..., Any]:
        text = "\n".join(self.lines) + "\n"
        filename = f"<kafscale {self.title}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.names)
        built: Callable[..., Any] = self.names[function]
        return built
