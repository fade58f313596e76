"""Errors that a person can act on.

`tidelog` prints such an error as one paragraph and exits with status 1. Any other error is a bug and keeps
its traceback.
"""


class UserError(Exception):
    """`message` says what failed and where; `fix` says what to do about it."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(f"{message} {fix}".strip())
        self.message = message
        self.fix = fix
