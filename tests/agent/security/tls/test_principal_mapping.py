"""Kafka's rules from a subject to a name, with the examples of Kafka's own documentation and tests."""

import pytest

from agent.security.tls.principal_mapping import BadRule, NoRuleMatches, PrincipalMapping

SUBJECT = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", SUBJECT, SUBJECT),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", SUBJECT, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", SUBJECT, "duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$2/U", SUBJECT, "DUKE@$2"),
        (
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,"
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, DEFAULT",
            "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
            "duke@sme",
        ),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "cn=K1.example.com,dc=x", "k1.example.com"),
        ("RULE:^OU=nothing$/x/,DEFAULT", SUBJECT, SUBJECT),
        ("  RULE:^CN=(.*?),.*$/$1/ , DEFAULT  ", SUBJECT, "Duke"),
        ("RULE:^CN=(\\w+),OU=(\\w+),.*$/$2\\/$1/", SUBJECT, "ServiceUsers/Duke"),
        ("RULE:^CN=(.*?),.*$/$12/", SUBJECT, "Duke2"),
        ("RULE:^CN=(?<who>.*?),.*$/${who}/", SUBJECT, "Duke"),
        ("RULE:.*/x/", SUBJECT, "xx"),
        ("RULE:^CN=(.*?),.*$/\\$1/", SUBJECT, "$1"),
        ("RULE:^CN=(a)?.*$/[$1]/", SUBJECT, "[]"),
    ],
)  # fmt: skip
def test_the_first_rule_that_matches_names_the_client(rules: str, subject: str, name: str) -> None:
    assert PrincipalMapping.parse(rules).name(subject) == name


def test_a_subject_that_no_rule_matches_has_no_name() -> None:
    with pytest.raises(NoRuleMatches, match="CN=Duke"):
        PrincipalMapping.parse("RULE:^CN=alice$/alice/").name(SUBJECT)


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/LU",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/X",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/LU",
        "RULE:(/x/",
        "RULE:\\p{Lu}/x/",
    ],
)
def test_a_rule_of_another_grammar_is_refused(rules: str) -> None:
    with pytest.raises(BadRule):
        PrincipalMapping.parse(rules)
