"""Writes `docs/kafka-api.md` from the handlers (`make docs`): which of Kafka's APIs are served, and how.

Versions come from the list that ApiVersions advertises. KIPs and refusals come from the docstring of each
handler's module, so the page says what the code says. A test compares the page with the code.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agent.kafka.api import Api
from agent.kafka.authorization import CHECKS
from agent.kafka.served import APIS, NOT_SERVED
from sequencer.topics.topic_config import KNOWN_CONFIGS, REFUSED_CONFIGS

PAGE: Final = Path(__file__).parents[2] / "docs" / "kafka-api.md"
_COLUMNS: Final = 100
_FIRST_SENTENCE: Final = re.compile(
    r"^Kafka API (?P<key>\d+), (?P<name>\w+), v(?P<first>\d+)(?:-v(?P<last>\d+))?"
)
_INTRODUCTION: Final = """# Kafka's protocol, API by API

`make docs` writes this page from the handlers in `agent/kafka/apis`. The text of each API is its
module's docstring. All versions from the first to the last named one are served. An API or a
version that is not served is not advertised, and a request of it closes the connection, as in
Kafka. Every response has Kafka's error codes. A failure of one topic, partition, group or resource
affects no other of the same request.
"""


class DocstringWrong(Exception):
    """A module's docstring does not say what the module serves."""


def document(apis: Iterable[Api]) -> str:
    """Returns the whole page."""
    in_order = sorted(apis, key=lambda api: api.key)
    return "\n".join(
        [
            _INTRODUCTION,
            "## Served",
            "",
            "| key | API | versions | KIPs |",
            "|---:|---|---|---|",
            *(
                f"| {api.key} | [{api.name}](#{_anchor(api)}) | {_versions(api)} | {_kips(api)} |"
                for api in in_order
            ),
            "",
            "## Not served",
            "",
            "| key | API | why |",
            "|---:|---|---|",
            *(f"| {key} | {missing.name} | {missing.why} |" for key, missing in sorted(NOT_SERVED.items())),
            "",
            "## What each does and refuses",
            "",
            *(line for api in in_order for line in _section(api)),
            *_checks(in_order),
            *_configs(),
        ]
    )


def _checks(apis: Iterable[Api]) -> list[str]:
    lines = [
        "## What each checks",
        "",
        *_wrapped(
            "With an authorizer ([security.md](security.md)), a client needs these rights. The last column "
            "says on what, and what happens without. ApiVersions and telemetry need none."
        ),
        "",
        "| API | operation | resource | on what, and what a refusal means |",
        "|---|---|---|---|",
    ]
    for api in apis:
        lines += [
            f"| {api.name} | {check.operation.name} | {check.resource_type.name} | {check.when} |"
            for check in CHECKS[api.key]
        ]
    return [*lines, ""]


def _configs() -> list[str]:
    known = sorted(KNOWN_CONFIGS.values(), key=lambda definition: definition.name)
    return [
        "## Topic configs",
        "",
        "A config is accepted if it is honoured, or if what it asks for is always so. Every other name is "
        "refused with INVALID_CONFIG.",
        "",
        "| config | default | what it means here |",
        "|---|---|---|",
        *(f"| `{config.name}` | `{config.default}` | {config.documentation} |" for config in known),
        "",
        "| refused | why |",
        "|---|---|",
        *(f"| `{name}` | {why} |" for name, why in sorted(REFUSED_CONFIGS.items())),
        "",
    ]


def _section(api: Api) -> list[str]:
    text = _docstring(api)
    said = _FIRST_SENTENCE.match(text)
    if said is None:
        raise DocstringWrong(
            f"{api.name}: its module's docstring does not begin with 'Kafka API {api.key}, ...'"
        )
    first, last = int(said["first"]), int(said["last"] or said["first"])
    served = range(max(api.served_from, api.versions.start), api.versions.stop)
    if (int(said["key"]), said["name"], range(first, last + 1)) != (api.key, api.name, served):
        raise DocstringWrong(f"{api.name}: its docstring says {said.group()!r}, it serves {_versions(api)}")
    beginning, *rest = text[said.end() :].split("\n\n")
    space = " " if beginning[:1].isspace() else ""
    lines = [f"### {api.key} {api.name}", ""]
    for paragraph in (f"{_versions(api)}{space}{beginning.strip()}", *rest):
        lines += [*_wrapped(paragraph), ""]
    return lines


def _versions(api: Api) -> str:
    first, last = max(api.served_from, api.versions.start), api.versions.stop - 1
    return f"v{first}" if first == last else f"v{first}-v{last}"


def _kips(api: Api) -> str:
    served, _, _ = _docstring(api).partition("Refused:")
    named = {int(number) for number in re.findall(r"KIP-(\d+)", served)}
    return ", ".join(f"KIP-{number}" for number in sorted(named))


def _anchor(api: Api) -> str:
    return f"{api.key}-{api.name.lower()}"


def _docstring(api: Api) -> str:
    return inspect.cleandoc(api.code.documentation)


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    PAGE.write_text(document(APIS))
    sys.stdout.write(f"wrote {PAGE}\n")


if __name__ == "__main__":
    main()
