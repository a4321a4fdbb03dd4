"""Reads a pipeline's YAML: fills in `${NAME}` from the environment, and reports mistakes with line and key.

pipeline.yaml:12: mappings[0].value.format: 'avor' is not one of bytes, string, json, avro, protobuf, json-schema
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

import attrs
import yaml
from cattrs import Converter
from cattrs.errors import AttributeValidationNote, BaseValidationError, ForbiddenExtraKeysError, IterableValidationNote

from kafscale.errors import ConfigError
from kafscale.spark.pipeline.config import Pipeline, WrongSetting

KeyPath = tuple[str | int, ...]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read_pipeline(path: Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    """Read a file. Raises ConfigError, which names file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else f"it is not UTF-8: {exc}"
        raise ConfigError(f"the pipeline {path} can't be read: {why}") from exc
    return parse_pipeline(text, str(path), environment)


def parse_pipeline(text: str, name: str, environment: Mapping[str, str]) -> Pipeline:
    """Parse a pipeline from text, as `read_pipeline` does."""
    document = _Document(name=name, environment=environment)
    try:
        data = document.build(yaml.compose(text, yaml.SafeLoader), ())
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise ConfigError(f"{name}:{line}: {exc.problem}") from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise ConfigError(f"{name}:{line}: the character {chr(exc.character)!r} can't be in it") from exc
    except RecursionError as exc:
        raise ConfigError(f"{name}:1: it is nested too deep, or in itself") from exc
    if not isinstance(data, dict):
        raise ConfigError(f"{name}:1: a pipeline is a mapping of keys: source, catalog, checkpoints, mappings")
    try:
        return _CONVERTER.structure(data, Pipeline)
    except Exception as exc:
        found = min(_problems(exc, ()), key=lambda each: (each.is_missing, document.line(each.path)))
        raise document.error(found.path, found.message) from exc


@attrs.frozen
class _Problem:
    path: KeyPath
    message: str
    is_missing: bool = False  # told last: mostly the key is there, but misspelt


@attrs.define(kw_only=True)
class _Document:
    name: str
    environment: Mapping[str, str]
    lines: dict[KeyPath, int] = attrs.field(factory=dict)

    def build(self, node: yaml.Node | None, path: KeyPath) -> Any:
        if node is None:
            return None
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            value = yaml.SafeLoader("").construct_object(node)
        except ValueError as exc:  # of a date or a number, by its form, that is none
            raise self.error(path, f"is not a value of YAML: {exc}") from exc
        return self._filled(value, path) if isinstance(value, str) else value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            inner = (*path, key)
            self.lines[inner] = key_node.start_mark.line + 1
            if key in found:
                raise self.error(inner, "is there twice")
            found[key] = self.build(value_node, inner)
        return found

    def _filled(self, text: str, path: KeyPath) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in self.environment:
                raise self.error(path, f"the environment has no variable {match[1]}")
            return self.environment[match[1]]

        return _VARIABLE.sub(value, text)

    def line(self, path: KeyPath) -> int:
        """Return the line of a key, or of its parent if it is missing."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, path: KeyPath, message: str) -> ConfigError:
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        return ConfigError(f"{self.name}:{self.line(path)}: {text + ': ' if text else ''}{message}")


def _problems(exc: BaseException, path: KeyPath) -> Iterator[_Problem]:
    """Iterate over the single problems within an error of cattrs."""
    if isinstance(exc, BaseValidationError):
        for inner in exc.exceptions:
            yield from _problems(inner, (*path, *_steps(getattr(inner, "__notes__", ()))))
    elif isinstance(exc, ForbiddenExtraKeysError):
        known = [field.name for field in attrs.fields(exc.cl)]
        for name in sorted(exc.extra_fields):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            advice = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known)}"
            yield _Problem((*path, name), f"there is no such key; {advice}")
    elif isinstance(exc, KeyError):
        yield _Problem(path, "is missing", is_missing=True)
    elif isinstance(exc, WrongSetting):
        yield _Problem((*path, exc.key), str(exc))
    elif isinstance(exc, ValueError | TypeError | ConfigError):
        yield _Problem(path, str(exc))
    else:
        raise exc


def _steps(notes: Sequence[Any]) -> Iterator[str | int]:
    for note in notes:
        if isinstance(note, AttributeValidationNote):
            yield note.name
        elif isinstance(note, IterableValidationNote):
            yield note.index


def _make_converter() -> Converter:
    origin: Callable[[Any], Any] = get_origin
    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook_factory(attrs.has, partial(_part, converter))
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(bool, _strictly(bool, "true or false"))
    converter.register_structure_hook(int, _strictly(int, "a whole number"))
    converter.register_structure_hook_func(lambda kind: origin(kind) is Mapping, _texts)
    converter.register_structure_hook_func(
        lambda kind: kind == Mapping[str, str] | Sequence[str],
        lambda value, _: [_text(item, str) for item in value] if isinstance(value, list) else _texts(value, None),
    )
    converter.register_structure_hook_func(lambda kind: origin(kind) is Sequence, _list_of(converter))
    return converter


def _part(converter: Converter, kind: type) -> Any:
    structure: Any = converter.gen_structure_attrs_fromdict(kind)

    def check(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            names = ", ".join(field.name for field in attrs.fields(kind))
            raise ValueError(f"is a mapping of keys, not {_kind(value)}; there are: {names}")
        return structure(value, kind)

    return check


_KINDS: Mapping[type, str] = {
    type(None): "nothing",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "a mapping",
    list: "a list",
}


def _kind(value: Any) -> str:
    """Return the kind of a wrong value. The value is not shown, as it may be a secret."""
    return _KINDS.get(type(value), "a value of another kind")


def _text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is text, not {_kind(value)}; put it in quotes")
    return value


def _strictly(kind: type, what: str) -> Any:
    def check(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"is {what}, not {value!r}")
        return value

    return check


def _texts(value: Any, _: Any) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"is a mapping of names to values, not {_kind(value)}")
    return {name: str(item).lower() if isinstance(item, bool) else str(item) for name, item in value.items()}


def _list_of(converter: Converter) -> Any:
    def structure(value: Any, kind: Any) -> Sequence[Any]:
        if not isinstance(value, list):
            raise ValueError(f"is a list, not {_kind(value)}")
        kind_of_list: Any = list
        found: Sequence[Any] = converter.structure(value, kind_of_list[get_args(kind)[0]])
        return found

    return structure


_CONVERTER = _make_converter()


@attrs.frozen(kw_only=True)
class MappingCheck:
    """A checked part of a mapping, and the finding."""

    mapping: str
    what: str
    found: str
    ok: bool = True
