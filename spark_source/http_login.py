"""How Tidelog's own HTTP clients log in to an agent (docs/security.md#http).

Promises:
- Passwords and tokens come from the environment or from options of the data source, and are in no text and
  no error.
- A value that is no valid header raises LoginIncomplete, before a client library could print it.

No client follows redirects, so the header reaches no host that the settings do not name.
"""

import base64

from pydantic import SecretStr

from storage.settings import Settings

LOGIN_SETTINGS = frozenset({"http_user", "http_password", "http_token"})
"""They are no options of commands: everybody on a machine can read the arguments of a process."""
FIX = "Set TIDELOG_HTTP_USER and TIDELOG_HTTP_PASSWORD, or TIDELOG_HTTP_TOKEN."
_FIXES = {401: FIX, 403: "kafka-acls adds the missing ACL; a refusal of plain HTTP ends with https://."}


class LoginIncomplete(ValueError):
    """The settings name no whole login."""


class HttpLoginSettings(Settings):
    http_user: str | None = None
    """The user of commands and of the data source on an agent's HTTP side. Not an option of commands."""
    http_password: SecretStr | None = None
    """The user's password. Not an option of commands."""
    http_token: SecretStr | None = None
    """A token of the identity provider, instead of user and password. Not an option of commands."""


def login_headers(settings: HttpLoginSettings) -> dict[str, str]:
    """Returns the header `Authorization`, or none if the settings name no user. Raises LoginIncomplete."""
    user, password, token = settings.http_user, settings.http_password, settings.http_token
    if token is not None and (user or password):
        raise LoginIncomplete(f"A token and a user are both given. {FIX}")
    if token is not None:
        text = token.get_secret_value().strip()
        if not text.isascii() or not text.isprintable() or not text or " " in text:
            raise LoginIncomplete("TIDELOG_HTTP_TOKEN is no token.")
        return {"Authorization": f"Bearer {text}"}
    if not user and password is None:
        return {}
    if not user or password is None or ":" in user:
        raise LoginIncomplete(f"User and password belong together, and no user has a colon. {FIX}")
    proof = base64.b64encode(f"{user}:{password.get_secret_value()}".encode()).decode()
    return {"Authorization": f"Basic {proof}"}


def login_fix(status: int) -> str:
    """Returns what to do about an answer of this status, or nothing."""
    return _FIXES.get(status, "")
