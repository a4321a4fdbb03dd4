"""Kafka's rules from subject to principal; the cases of its SslPrincipalMapperTest, and those of Java's replaceAll."""

from __future__ import annotations

import pytest

from kafscale.security.principals import SUBJECT_MAX_COUNT, NoMatchingRule, Principal, SslPrincipalMapper


def name_of(rules: str, subject: str) -> str:
    principal = SslPrincipalMapper(rules).principal(subject)
    assert principal == Principal("User", principal.name)
    return principal.name


@pytest.mark.parametrize(
    "rules",
    [
        "DEFAULT",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
    ],
)
def test_valid_rules(rules: str) -> None:
    assert SslPrincipalMapper(rules).rules


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
    ],
)
def test_invalid_rules(rules: str) -> None:
    with pytest.raises(ValueError, match="is not a rule; allowed: DEFAULT, or RULE:PATTERN/REPLACEMENT/"):
        SslPrincipalMapper(rules)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_names(subject: str, name: str) -> None:
    rules = (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
    )
    assert name_of(rules, subject) == name


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", []),
        ("DEFAULT", ["DEFAULT"]),
        ("RULE://", ["RULE:/"]),
        ("RULE:/.*/", ["RULE:/.*"]),
        ("RULE:/.*/L", ["RULE:/.*/L"]),
        ("RULE://,DEFAULT", ["RULE:/", "DEFAULT"]),
        ("  RULE:// ,  DEFAULT  ", ["RULE:/", "DEFAULT"]),
        ("  RULE:   /     / ,  DEFAULT  ", ["RULE:   /     ", "DEFAULT"]),
        ("  RULE:  /     /U   ,DEFAULT  ", ["RULE:  /     /U", "DEFAULT"]),
        (
            "  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1/,   DEFAULT  ",
            ["RULE:([A-Z]*)/$1/U", "RULE:([a-z]+)/$1", "DEFAULT"],
        ),
        (",   , , ,      , , ,   ", []),
        (",,RULE://,,,DEFAULT,,", ["RULE:/", "DEFAULT"]),
        (",  , RULE: /   /    ,,,   DEFAULT, ,   ", ["RULE: /   ", "DEFAULT"]),
        ("     ,  , RULE:   /  /U    ,,  ,DEFAULT, ,", ["RULE:   /  /U", "DEFAULT"]),
        (r"RULE:\/\\\(\)\n\t/\/\//", [r"RULE:\/\\\(\)\n\t/\/\/"]),
        (r"RULE:\**\/+/*/L,RULE:\/*\**/**/", [r"RULE:\**\/+/*/L", r"RULE:\/*\**/**"]),
        (
            r"RULE:,RULE:,/,RULE:,\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/,DEFAULT",
            [
                r"RULE:,RULE:,/,RULE:,\//U",
                "RULE:,/RULE:,",
                "RULE:,RULE:,/L,RULE:,/L",
                "RULE:, DEFAULT, /DEFAULT",
                "DEFAULT",
            ],
        ),
    ],
)
def test_splitting(rules: str, expected: list[str]) -> None:
    assert [str(rule) for rule in SslPrincipalMapper(rules).rules] == expected


def test_a_comma_that_is_escaped_in_the_subject() -> None:
    rules = r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT"
    assert name_of(rules, r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz") == r"Tkac\, Adam"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("RULE:.*/x/", "CN=a", "xx"),  # Java replaces the empty rest as well
        ("RULE:^.*$/x/", "CN=a", "x"),
        ("RULE:a/x/,DEFAULT", "CN=a", "CN=a"),  # a pattern is for the whole subject
        ("RULE:CN=(a)(b)?/$1-$2/", "CN=a", "a-"),
        ("RULE:CN=(.)(.)/$2$1$0/", "CN=ab", "baCN=ab"),
        ("RULE:CN=(.*)/$1@$4/", "CN=a", "a@$4"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        (r"RULE:^CN=(.*)$/\$1\/$1\\/", "CN=a", "$1/a\\"),
        ("RULE:^CN=(.*)$/$1/U", "CN=é", "É"),
        ("RULE:^CN=(.*)$/<$1>/", "CN=日本", "<日本>"),
    ],
)
def test_replacing_is_javas(rules: str, subject: str, name: str) -> None:
    assert name_of(rules, subject) == name


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("RULE:(?<=CN=)a/x/", "is not a pattern"),
        (r"RULE:(a)\1/x/", "is not a pattern"),
        ("RULE:(a/x/", "is not a pattern"),
        ("RULE:a/$/", "is not a replacement"),
        ("RULE:a/$1/", "is not a replacement"),
        ("RULE:(a)/${name}/", "is not a replacement"),
    ],
)
def test_a_principal_mapping_rule_that_cannot_be_applied_is_refused(rules: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SslPrincipalMapper(rules)


def test_no_rule_that_applies_is_an_error() -> None:
    with pytest.raises(NoMatchingRule, match="applies to its certificate's subject 'O=b'"):
        SslPrincipalMapper("RULE:^CN=(.*)$/$1/").principal("O=b")


def test_a_subject_is_bounded() -> None:
    with pytest.raises(NoMatchingRule, match="more than 1024 characters"):
        SslPrincipalMapper("DEFAULT").principal("x" * (SUBJECT_MAX_COUNT + 1))


@pytest.mark.timeout(10)
def test_no_subject_takes_an_expression_long() -> None:
    """Java and Python would not come back from these."""
    mapper = SslPrincipalMapper("RULE:^CN=((a+)+)+$/$1/,RULE:(x*)*y/$1/,DEFAULT")
    subject = "CN=" + "a" * (SUBJECT_MAX_COUNT - 4) + "!"
    assert mapper.principal(subject).name == subject
