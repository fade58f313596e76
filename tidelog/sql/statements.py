"""SQL as text: where statements end, and the few spellings that the engines do not share. Pure.

Promises:
- A semicolon in a string, a quoted name or a comment ends no statement.
- What is rewritten means the same in the engine for which it is written. Strings and comments stay as they
  are.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["space", "comment", "string", "quoted", "number", "word", "sign", "open"]
"""`quoted` is a name in double quotes or backquotes; `open` a string, name or comment that does not end."""

_TOKEN: Final = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<comment>--[^\n]*|/\*.*?\*/)"
    r"|(?P<string>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)"
    r'|(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)'
    r"""|(?P<open>/\*.*|["'`].*)"""
    r"|(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<sign>::|.)",
    re.DOTALL,
)
_SPARK_STRING: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_TEXT_TYPES: Final = frozenset({"string", "varchar", "text"})


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    def says(self, *words: str) -> bool:
        """True for one of these words or signs, in any case."""
        return self.kind in ("word", "sign") and self.text.lower() in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    text: str
    """Without the semicolon and the space around it."""
    is_ended: bool
    """False if no semicolon follows it."""

    @property
    def first_word(self) -> str:
        """In small letters; empty if it begins with something else."""
        first = next((token for token in significant(tokens_of(self.text)) if not token.says("(")), None)
        return first.text.lower() if first is not None and first.kind == "word" else ""


def tokens_of(text: str, *, backslash_escapes: bool = False) -> Iterator[Token]:
    """All of the text, in order. `backslash_escapes`: as in Spark's strings."""
    position = 0
    while position < len(text):
        spark = _SPARK_STRING.match(text, position) if backslash_escapes else None
        if spark is not None:
            yield Token("string", spark[0], position)
            position = spark.end()
            continue
        found = _TOKEN.match(text, position)
        assert found is not None, "the last alternative takes any character"
        kind: Kind = found.lastgroup  # type: ignore[assignment]
        yield Token("string" if found["string"] else kind, found[0], position)
        position = found.end()


def significant(tokens: Iterator[Token]) -> list[Token]:
    """Without space and comments."""
    return [token for token in tokens if token.kind not in ("space", "comment")]


def split(text: str, *, backslash_escapes: bool = False) -> list[Statement]:
    """The statements of a text. Empty ones are left out."""
    found: list[Statement] = []
    start = 0
    for token in tokens_of(text, backslash_escapes=backslash_escapes):
        if token.says(";"):
            found += _statement(text[start : token.start], is_ended=True)
            start = token.end
    return found + _statement(text[start:], is_ended=False)


def _statement(text: str, *, is_ended: bool) -> list[Statement]:
    if not significant(tokens_of(text)):
        return []
    return [Statement(text=text.strip(), is_ended=is_ended)]


def is_complete(text: str) -> bool:
    """True if a shell need not wait for more lines: all statements have ended."""
    return all(statement.is_ended for statement in split(text))


def named_tables(text: str, known: Collection[str]) -> set[str]:
    """Those of the known tables that the text may read: each that it names, in any case."""
    spelled = {name.lower(): name for name in known}
    return {
        spelled[name]
        for token in tokens_of(text, backslash_escapes=True)
        if token.kind in ("word", "quoted") and (name := unquoted(token.text).lower()) in spelled
    }


def unquoted(name: str) -> str:
    """A name without its quotes."""
    mark = name[:1]
    return name[1:-1].replace(mark * 2, mark) if mark in ('"', "`") and len(name) > 1 else name


def quoted(name: str, mark: str = '"') -> str:
    """A name as SQL has it."""
    return mark + name.replace(mark, mark * 2) + mark


def for_duckdb(text: str) -> str:
    """The statement in DuckDB's spelling.

    - A name in backquotes gets double quotes.
    - `offset` is a reserved word; as a column it gets quotes.
    - `CAST(x AS STRING)` and `x::STRING` become `text(x)`, a macro of the engine: bytes that are UTF-8 become
      this text, as in Spark. DuckDB itself would write each byte that is not ASCII as `\\xNN`.
    """
    tokens = list(tokens_of(text))
    places = [place for place, token in enumerate(tokens) if token.kind not in ("space", "comment")]
    own = [tokens[place] for place in places]
    written = [token.text for token in own]
    for at, token in enumerate(own):
        if token.text.startswith("`") and token.kind == "quoted":
            written[at] = quoted(unquoted(token.text))
        elif token.says("offset") and not _counts_rows(own, at):
            written[at] = quoted(token.text)
        elif token.says("cast"):
            _text_cast(own, at, written)
        elif token.says("::"):
            _text_suffix(own, at, written)
    for place, new in zip(places, written, strict=True):
        tokens[place] = Token(tokens[place].kind, new, tokens[place].start)
    return "".join(token.text for token in tokens)


def _counts_rows(own: Sequence[Token], at: int) -> bool:
    """True for the clause `OFFSET 10`."""
    return at + 1 < len(own) and (own[at + 1].kind == "number" or own[at + 1].says("(", "?", "$"))


def _text_cast(own: Sequence[Token], at: int, written: list[str]) -> None:
    """`CAST ( ... AS STRING )` to `text ( ... )`."""
    if at + 1 >= len(own) or not own[at + 1].says("("):
        return
    depth = 0
    for place in range(at + 1, len(own)):
        depth += own[place].says("(") - own[place].says(")")
        if not depth:
            if own[place - 2].says("as") and own[place - 1].says(*_TEXT_TYPES):
                written[at], written[place - 2], written[place - 1] = "text", "", ""
            return


def _text_suffix(own: Sequence[Token], at: int, written: list[str]) -> None:
    """`a.b::STRING` to `text(a.b)`."""
    if at + 1 >= len(own) or not own[at + 1].says(*_TEXT_TYPES):
        return
    if at + 2 < len(own) and own[at + 2].says("["):
        return
    first = at - 1
    while first >= 2 and own[first - 1].says(".") and own[first - 2].kind in ("word", "quoted"):
        first -= 2
    if first < 0 or own[first].kind not in ("word", "quoted"):
        return
    written[first] = "text(" + written[first]
    written[at], written[at + 1] = ")", ""


def for_spark(text: str, tables: Collection[str], namespace: str) -> str:
    """The statement in Spark's spelling, in which each of `tables` is the view of the same name.

    `topics.flights`, `tidelog.topics.flights` and `"flights"` become `` `flights` ``. What follows such a
    name stays, so that `topics.flights.key` is a column of the view.
    """
    tokens = list(tokens_of(text, backslash_escapes=True))
    places = [place for place, token in enumerate(tokens) if token.kind not in ("space", "comment")]
    own = [tokens[place] for place in places]
    written = [token.text for token in own]
    spelled = {name.lower(): name for name in tables}
    for at, token in enumerate(own):
        name = spelled.get(unquoted(token.text).lower()) if token.kind in ("word", "quoted") else None
        if name is None:
            continue
        first = at
        for part in (namespace, "tidelog"):
            if first >= 2 and own[first - 1].says(".") and unquoted(own[first - 2].text).lower() == part:
                first -= 2
            else:
                break
        if first < at or token.text.startswith('"'):
            written[first:at] = [""] * (at - first)
            written[at] = quoted(name, "`")
    for place, new in zip(places, written, strict=True):
        tokens[place] = Token(tokens[place].kind, new, tokens[place].start)
    return "".join(token.text for token in tokens)
