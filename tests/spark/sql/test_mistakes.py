"""Statements that are refused before an engine starts, and that Spark's own parser refuses, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafscale.errors import QueryError
from kafscale.spark.sql.tokens import FIRST_WORDS, refuse_mistakes

GOOD = [
    "select 1",
    "(select 1) union (select 2)",
    "with a as (select ')' as b) select * from a -- (",
    "from orders select value",
    "values (1), (2)",
    "add jar /a/(b.jar",
    "set x = )",
    "${statement}",
    "/* ( */ select /* ' */ 1",
    "show topics like 'o*'",
    "",
    " -- nothing",
]
BAD = [
    ("selec 1", "'selec 1': this begins no statement of SQL; did you mean SELECT?"),
    ("orders", "'orders': this begins no statement of SQL; allowed: SELECT, WITH, SHOW TOPICS"),
    ("5", "'5': this begins no statement"),
    ("\n\nselct 1", "line 3, 'selct 1': this begins no statement of SQL; did you mean SELECT?"),
    ("select count(* from orders", r"'\(\* from orders': this parenthesis is not closed"),
    ("select 1)", r"'\)': no parenthesis is open"),
    ("select 'it''s", "a string, quoted name or comment begins here and does not end"),
    ("select `a from b", "does not end"),
    ("select 1 /* a", "does not end"),
]
STATEMENTS = Path(__file__).parent / "statements.txt"


@pytest.mark.parametrize("statement", GOOD)
def test_good_statements_pass(statement: str) -> None:
    refuse_mistakes(statement)


@pytest.mark.parametrize(("statement", "told"), BAD)
def test_mistakes_are_refused(statement: str, told: str) -> None:
    with pytest.raises(QueryError, match=told.replace("?", r"\?")):
        refuse_mistakes(statement)


def test_statements_of_the_other_tests_pass() -> None:
    statements = [line[2:] for line in STATEMENTS.read_text().splitlines() if line.startswith("? ")]
    assert len(statements) > 50
    for each in statements:
        refuse_mistakes(each)


@pytest.mark.spark
def test_sparks_parser_agrees(spark) -> None:
    from py4j.java_gateway import get_field
    from pyspark.errors import ParseException

    generated = spark._jvm.org.apache.spark.sql.catalyst.parser.SqlBaseParser
    automaton = generated._ATN
    state = get_field(automaton, "ruleToStartState")[generated.RULE_compoundOrSingleStatement]
    names = {generated.VOCABULARY.getSymbolicName(each) for each in automaton.nextTokens(state).toList()}
    assert names <= FIRST_WORDS | {"LEFT_PAREN"}
    parser = spark._jsparkSession.sessionState().sqlParser()
    for statement, _ in BAD:
        with pytest.raises(ParseException):
            parser.parsePlan(statement)
