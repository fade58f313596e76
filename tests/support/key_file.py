"""Files of key encryption keys (docs/encryption.md)."""

import base64
import os


def key_line(name: str) -> str:
    """A line with a new key."""
    return f"{name} {base64.b64encode(os.urandom(32)).decode()}\n"
