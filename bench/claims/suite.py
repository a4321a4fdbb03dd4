"""Rows that a suite of tests shows: runs it, and counts its cases, and what they say that they have tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import attrs

from bench.claims.claim import Finding, Variant

REPOSITORY = Path(__file__).parents[2]
_PARAMETERS = re.compile(r"\[.*", re.DOTALL)


@attrs.frozen(kw_only=True)
class Suite:
    """The outcome of a run: for each test, over all of its parameters, the cases and what they counted."""

    variants: Sequence[Variant]
    cases_count: int
    failed_count: int
    counted: Mapping[str, int]

    @property
    def is_passed(self) -> bool:
        return self.cases_count > 0 and not self.failed_count

    def finding(self, ours: str) -> Finding:
        """Return the suite's outcome as a row's finding; what failed is said first."""
        failed = f"{self.failed_count} of {self.cases_count} cases FAILED; " if self.failed_count else ""
        return Finding(ours=failed + ours, is_shown=self.is_passed, variants=self.variants)


def run_suite(*targets: str, environ: Mapping[str, str] | None = None) -> Suite:
    """Run these files or tests by pytest in a process of its own. What the tests `record_property` is added up."""
    with TemporaryDirectory(prefix="kafscale-bench-") as directory:
        report = Path(directory) / "report.xml"
        written = ["-o", "junit_family=xunit1", f"--junitxml={report}"]  # the newer form has no properties of cases
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *written, *targets]
        done = subprocess.run(
            command, cwd=REPOSITORY, env={**os.environ, **(environ or {})}, capture_output=True, text=True, check=False
        )
        if not report.exists():
            raise RuntimeError(f"pytest did not run: {done.stdout}{done.stderr}")
        suite = _read(ElementTree.parse(report))
    if suite.failed_count:
        print(done.stdout, file=sys.stderr)
    return suite


def _read(report: ElementTree.ElementTree[ElementTree.Element]) -> Suite:
    by_test: dict[str, dict[str, int]] = {}
    counted: dict[str, int] = defaultdict(int)
    for case in report.iter("testcase"):
        name = _PARAMETERS.sub("", case.attrib["name"]).removeprefix("test_").replace("_", " ")
        figures = by_test.setdefault(name, {"cases": 0, "failed": 0})
        figures["cases"] += 1
        figures["failed"] += any(child.tag in ("failure", "error") for child in case)
        for element in case.iter("property"):
            told, value = element.attrib["name"], element.attrib["value"]
            if value.isdecimal():  # Hypothesis adds texts of its own
                figures[told] = figures.get(told, 0) + int(value)
                counted[told] += int(value)
    return Suite(
        variants=[Variant(name=name, figures=figures) for name, figures in by_test.items()],
        cases_count=sum(figures["cases"] for figures in by_test.values()),
        failed_count=sum(figures["failed"] for figures in by_test.values()),
        counted=counted,
    )
