"""Regular expressions of subscriptions: whole names, linear time, bounded size."""

import pytest

from agent.groups.consumer.known_topics import InvalidRegex, check_regex, matching

BOUNDS = {"max_length": 100, "max_program_size": 1_000}


def test_an_expression_matches_whole_names() -> None:
    names = ["orders", "orders-eu", "old-orders", "Orders"]

    assert matching("orders", names) == {"orders"}
    assert matching("orders.*", names) == {"orders", "orders-eu"}
    assert matching("(?i)orders|old-.*", names) == {"orders", "Orders", "old-orders"}


@pytest.mark.parametrize("regex", ["(", "[a", "a(?=b)", r"(a)\1", "a{2000}"])
def test_an_expression_unknown_to_re2_is_refused_with_its_reason(regex: str) -> None:
    with pytest.raises(InvalidRegex, match=r"not a valid regular expression: .+"):
        check_regex(regex, **BOUNDS)


@pytest.mark.parametrize("regex", ["a" * 101, ".{900}", "((a{30}){30}){2}"])
def test_an_expression_that_is_too_large_is_refused(regex: str) -> None:
    with pytest.raises(InvalidRegex, match=r"longer than|too complex|not a valid"):
        check_regex(regex, **BOUNDS)


def test_an_expression_that_is_exponential_elsewhere_is_fast_here() -> None:
    check_regex("(a*)*b", **BOUNDS)

    assert matching("(a*)*b", ["a" * 249]) == frozenset()
