"""Asking agents over HTTP, with errors a person can act on."""

from collections.abc import Mapping
from typing import Any

import httpx

from tidelog.errors import UserError

_FIXES: Mapping[str, str] = {
    "unknown_topic": "`tidelog topics list` shows those there are; `tidelog topics create` makes one.",
    "topic_exists": "`tidelog topics alter` changes it, `tidelog topics delete` removes it.",
    "sequencer_unavailable": "The agent cannot reach its database; its /ready says why.",
}


def ask(client: httpx.Client, method: str, url: str, **more: Any) -> dict[str, Any]:
    """The JSON object that the agent at `url` (with the path) answers. Raises `UserError`."""
    where = str(httpx.URL(url).copy_with(path="/", query=None)).rstrip("/")
    try:
        answer = client.request(method, url, **more)
    except httpx.TransportError as error:
        raise UserError(
            f"No agent answers at {where} ({error or type(error).__name__}).",
            "Does one run there? If not, correct TIDELOG_HTTP_URL.",
        ) from None
    try:
        found = answer.json()
    except ValueError:
        raise UserError(f"{where} is not a Tidelog agent: it answered {answer.status_code}.") from None
    if answer.is_error:
        raise UserError(str(found.get("message", answer.text)), _FIXES.get(str(found.get("error")), ""))
    return dict(found)
