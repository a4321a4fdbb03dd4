"""Prose is plain: `tests.docs.plain_words` finds nothing in any room."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.docs.plain_words import PHRASES, REPOSITORY, findings, rooms, shared_class_names

SHARED_CLASS_NAMES_MAX_COUNT = 5
LAST_COMMIT_BEFORE_THE_RULE = "41639fc2"

_SUBJECT = re.compile(r"[a-z][a-z0-9 ,/_.-]*: [a-z-]+,? .+|Merge .+|Revert .+")
_SUBJECT_CHARACTERS_COUNT = 72


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_is_in_plain_words(room: str) -> None:
    assert [str(finding) for path in rooms()[room] for finding in findings(path)] == []


def test_few_classes_share_a_name() -> None:
    """The same name for two things has readers open the wrong module."""
    package = [path for room, paths in rooms().items() if room.startswith("kafscale") for path in paths]
    shared = shared_class_names(package)
    assert len(shared) <= SHARED_CLASS_NAMES_MAX_COUNT, ", ".join(shared)


def test_subjects_of_commits_name_the_area_and_the_change() -> None:
    assert [subject for subject in _subjects() if not _is_good_subject(subject)] == []


def _is_good_subject(subject: str) -> bool:
    return len(subject) <= _SUBJECT_CHARACTERS_COUNT and _SUBJECT.fullmatch(subject) is not None


def _subjects() -> list[str]:
    """Return the subjects of the commits since the rule; skips where the history does not reach that far."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    command = ["git", "log", "--format=%s", f"{LAST_COMMIT_BEFORE_THE_RULE}..HEAD"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("needs the history of the repository")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("subject", "is_good"),
    [
        ("log: refuse late objects of an older epoch", True),
        ("cluster, api: move configs to registries", True),
        ("Refuse late objects", False),
        ("log: Refuse late objects", False),
        ("log: refused", False),
        ("log: " + "refuse late objects of an older epoch " * 2, False),
    ],
)
def test_a_subject_that_breaks_the_rule_is_found(subject: str, is_good: bool) -> None:
    assert _is_good_subject(subject) == is_good


BREACHES = {
    "nobody": "Nobody reads the object.",
    "whoever": "Wake whoever waits.",
    "a clause with who in place of a noun": "Shared by who asks for it.",
    "have X done": "Have it written again.",
    "there is none that": "Return None, if there is none that waits.",
    "a negated noun": "A name is no integer.",
    "beside others": "Run a broker beside others.",
    "heir": "Tell the heir of the partition.",
    "so many": "Take so many bytes.",
    "so much": "Keep so much of the pool.",
    "of no use": "The checkpoint is of no use.",
    "of that kind": "Linux has nothing of the kind.",
    "what there is": "Encode what there is.",
    "a clause with what in place of a noun": "Look for cycles in what has changed.",
}


def test_every_phrase_is_proved() -> None:
    assert BREACHES.keys() == PHRASES.keys()


@pytest.mark.parametrize("rule", BREACHES)
def test_a_banned_phrase_is_found_in_strings_comments_docstrings_and_pages(rule: str, tmp_path: Path) -> None:
    sentence = BREACHES[rule]
    literals = f'"""The module."""\nprint("{sentence}")\n# {sentence}\n'
    module = f'{literals}def function():\n    """Do it.\n\n    {sentence}\n    """\n'
    assert _rules(module, tmp_path) == [rule] * 3
    (tmp_path / "page.md").write_text(f"# Page\n\n{sentence}\n\n```\n{sentence}\n```\n")
    assert [finding.rule for finding in findings(tmp_path / "page.md")] == [rule]


@pytest.mark.parametrize("docstring", ["What has changed.", "Whether it is full.", "Of the mapping.", "Have it wait."])
def test_a_docstring_that_begins_with_neither_verb_nor_noun_is_found(docstring: str, tmp_path: Path) -> None:
    assert "a docstring that begins with neither verb nor noun" in _rules(f'"""{docstring}"""\n', tmp_path)
    assert _rules('"""Return the mapping."""\n', tmp_path) == []


@pytest.mark.parametrize(
    "loop", ["for each in names: pass", "[each for each in names]", "{a: each for a, each in names}"]
)
def test_each_as_a_loop_variable_is_found(loop: str, tmp_path: Path) -> None:
    assert _rules(f"{loop}\n", tmp_path) == ["`each` as a loop variable"]
    assert _rules(f"{loop}\n".replace("each", "name"), tmp_path) == []


def test_code_in_backquotes_is_not_prose(tmp_path: Path) -> None:
    assert _rules('"""Return `nobody`."""\n', tmp_path) == []


def test_a_class_name_in_two_modules_is_found(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("class Reader: pass\nclass One: pass\n")
    two.write_text("class Reader: pass\n")
    assert shared_class_names([one, two]) == {"Reader": [one, two]}


def _rules(source: str, folder: Path) -> list[str]:
    path = folder / "module.py"
    path.write_text(textwrap.dedent(source))
    return [finding.rule for finding in findings(path)]
