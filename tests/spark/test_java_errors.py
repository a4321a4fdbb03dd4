"""Of an error of Java's, the one line that says what it is."""

import pytest

from kafscale.spark.session import first_line

OF_PY4J = """An error occurred while calling o52.sql.
: org.apache.iceberg.exceptions.CommitFailedException: metadata location v3 has changed
\tat org.apache.iceberg.hadoop.HadoopTableOperations.commit(HadoopTableOperations.java:135)
Caused by: java.io.IOException: no space is left
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OF_PY4J, "org.apache.iceberg.exceptions.CommitFailedException: metadata location v3 has changed"),
        (
            "a call failed\n  java.lang.OutOfMemoryError: Java heap space\n\tat a.b(C.java:1)",
            "java.lang.OutOfMemoryError: Java heap space",
        ),
        ("\n  [TABLE_OR_VIEW_NOT_FOUND] there is no `t`.\n'Project [*]", "[TABLE_OR_VIEW_NOT_FOUND] there is no `t`."),
        ("an Error: of nobody's, but named", "an Error: of nobody's, but named"),
        ("", "ValueError"),
    ],
)
def test_a_java_error_is_reduced_to_the_line_naming_the_exception(text, line):
    assert first_line(ValueError(text)) == line
