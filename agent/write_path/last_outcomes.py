"""Whether uploads, or commits, work now: what came of the last ones (docs/design/failure-rules.md#start-and-stop).

Promises that `complaint` is None after a success, and until the next failure; and that work without an answer for
`stalled_after_s` is a complaint too. Pure: time is a parameter, in monotonic seconds.
"""


class LastOutcomes:
    def __init__(self, what: str, stalled_after_s: float) -> None:
        """`what`: a plural, for people."""
        self._what = what
        self._stalled_after_s = stalled_after_s
        self._under_way = 0
        self._silent_since_s = 0.0
        self._failure: str | None = None

    @property
    def is_failing(self) -> bool:
        return self._failure is not None

    @property
    def is_idle(self) -> bool:
        return not self._under_way

    def began(self, now_s: float) -> None:
        if not self._under_way:
            self._silent_since_s = now_s
        self._under_way += 1

    def ended(self) -> None:
        """Whatever came of it. Once for each that began."""
        self._under_way -= 1

    def succeeded(self, now_s: float) -> None:
        self._silent_since_s = now_s
        self._failure = None

    def failed(self, reason: str, now_s: float) -> None:
        self._silent_since_s = now_s
        self._failure = reason

    def put_off(self, now_s: float) -> None:
        """The other side answered that it is busy, which is no fault."""
        self._silent_since_s = now_s

    def complaint(self, now_s: float) -> str | None:
        """Why they do not work now, if they do not."""
        if self._failure is not None:
            return f"{self._what} fail: {self._failure}"
        silent_s = now_s - self._silent_since_s
        if self._under_way and silent_s > self._stalled_after_s:
            return f"{self._what} have had no answer for {silent_s:.0f} s"
        return None
