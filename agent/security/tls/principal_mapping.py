"""From the subject of a client's certificate to the name of its principal: Kafka's
`ssl.principal.mapping.rules` (KIP-371, KIP-492). Pure.

A rule is `DEFAULT` or `RULE:pattern/replacement/` with an optional `L` or `U` for lower or upper case. Rules
are separated by commas, and the first that matches the whole subject counts. `DEFAULT` takes the subject as
it is.

Patterns are Java's, as far as Python's `re` has them: `(?<name>...)` is understood, `\\p{...}` is not. What a
pattern of the operator costs, each new connection costs.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)")
_PARSER: Final = re.compile(_RULE)
_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_NAMED_REFERENCE: Final = re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}")
_MOST_LETTERS: Final = 10_000


class BadRule(ValueError):
    """A rule is not of Kafka's grammar."""


class NoRuleMatches(ValueError):
    """The client's subject is not one that the rules name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        if self.pattern.fullmatch(subject) is None:
            return None
        name = self.pattern.sub(lambda match: _expanded(self.replacement, match), subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    _rules: tuple[_Rule | None, ...]
    """None: DEFAULT."""

    @classmethod
    def parse(cls, rules: str) -> Self:
        """Raises BadRule."""
        return cls(tuple(_parsed(rule) for rule in _split(rules)))

    def name(self, subject: str) -> str:
        """Raises NoRuleMatches."""
        if len(subject) <= _MOST_LETTERS:
            for rule in self._rules:
                name = subject if rule is None else rule.apply(subject)
                if name is not None:
                    return name
        raise NoRuleMatches(f"no rule of TIDELOG_TLS_PRINCIPAL_MAPPING_RULES matches {subject[:300]}")


def _split(rules: str) -> list[str]:
    return [found.group(1) for found in _SPLITTER.finditer(rules.strip()) if found.group(1)]


def _parsed(rule: str) -> _Rule | None:
    found = _PARSER.match(rule)
    if found is None or found.end() != len(rule):
        raise BadRule(
            f"'{rule}' is no rule: it is DEFAULT or RULE:pattern/replacement/ with L or U behind it"
        )
    if found.group(1) is not None:
        return None
    pattern, replacement, case = found.group(2), found.group(3), found.group(4)
    try:
        compiled = re.compile(_NAMED_GROUP.sub("(?P<", pattern))
    except re.error as error:
        raise BadRule(f"'{pattern}' is no pattern: {error}") from None
    return _Rule(pattern=compiled, replacement=replacement, case=case)


def _expanded(replacement: str, match: re.Match[str]) -> str:
    """Replaces as Java's `replaceAll`: `$1` and `${name}` are groups, `\\x` is x. A group that does not exist
    stays as text.
    """
    out: list[str] = []
    position = 0
    while position < len(replacement):
        letter = replacement[position]
        position += 1
        if letter == "\\" and position < len(replacement):
            out.append(replacement[position])
            position += 1
        elif letter == "$" and position < len(replacement) and replacement[position].isdecimal():
            number, position = _group_number(replacement, position, match.re.groups)
            out.append(f"${replacement[position - 1]}" if number is None else match.group(number) or "")
        elif letter == "$" and (named := _NAMED_REFERENCE.match(replacement, position)) is not None:
            position = named.end()
            known = named.group(1) in match.re.groupindex
            out.append((match.group(named.group(1)) or "") if known else f"${named.group()}")
        else:
            out.append(letter)
    return "".join(out)


def _group_number(replacement: str, position: int, groups: int) -> tuple[int | None, int]:
    """Returns the group, and where its number ends: digits count as long as there is such a group."""
    number = int(replacement[position])
    position += 1
    if number > groups:
        return None, position
    while position < len(replacement) and replacement[position].isdecimal():
        longer = 10 * number + int(replacement[position])
        if longer > groups:
            break
        number = longer
        position += 1
    return number, position
