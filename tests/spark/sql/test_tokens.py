"""Words and semicolons are told from those in strings, names and comments."""

import pytest

from kafscale.spark.sql.tokens import closing, split_statements, tokenize


def texts(text: str) -> list[str]:
    return [token.text for token in tokenize(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select a.b", ["select", "a", ".", "b"]),
        ("'it''s' \"x\\\"y\"", ["'it''s'", '"x\\"y"']),
        (r"r'\' last", [r"r'\'", "last"]),
        ("`a``b`.`c-d`", ["`a``b`", ".", "`c-d`"]),
        ("a -- last 5m\nb", ["a", "b"]),
        ("a /* x /* y */ last 5m */ b", ["a", "b"]),
        ("a / b", ["a", "/", "b"]),
        ("1.5h 15m", ["1.5", "h", "15m"]),
    ],
)
def test_tokens(text, found):
    assert texts(text) == found


def test_token_positions_match_the_text():
    text = "select 'é\U0001f600' /* c */ from `a b`"
    assert all(text[token.start : token.end] == token.text for token in tokenize(text))


@pytest.mark.parametrize("text", ["select 'a; b", "select `a; b", 'select "a;', "select 1 /* a; ", "/* /* */ ;"])
def test_an_unclosed_token_extends_to_the_end(text):
    assert tokenize(text)[-1].is_open
    assert split_statements(text) == ([], text)


def test_statements_end_at_semicolons_outside_of_strings():
    assert split_statements("select ';'; -- ;\n show topics ; sel") == (["select ';'", "-- ;\n show topics"], " sel")
    assert split_statements(" ; ;; -- nothing\n;") == ([], "")


def test_the_name_of_a_quoted_identifier():
    assert [token.name for token in tokenize("orders `a``b`")] == ["orders", "a`b"]


def test_the_closing_parenthesis():
    tokens = tokenize("f(a, (b), ')') x")
    assert tokens[closing(tokens, 1)].start == 13
