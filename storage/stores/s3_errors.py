"""Reads from obstore's errors what went wrong with a request to S3.

An error has one text: a sentence with the HTTP status and the body of the response, then the Rust errors
behind it. The store needs the status, S3's own code and a reason for people. Pure.
"""

import re
from dataclasses import dataclass
from html import unescape
from typing import Final

from obstore.exceptions import BaseError

from storage.stores.object_store import StoreUrl

REQUEST_ERRORS: Final = (BaseError, OSError)
"""What a failed request raises: FileNotFoundError for a missing object, TimeoutError for an attempt's
timeout."""

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_LONGEST_MESSAGE = 300
_CAUSE = re.compile(r'message: "([^"]+)"|kind: (Timeout|TimedOut)\b|(dns error)')
_KEYS_ASKED_OF = re.compile(r"latest/api/token|security-credentials|169\.254\.170\.|AssumeRole|credential_process")
_NO_RANGE = "Received non-partial response when range requested"

_BUSY = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "ServiceUnavailable", "RequestLimitExceeded", "Throttling"}
)
_MISSING = frozenset({"NoSuchKey", "NotFound", ""})
_RETRIABLE = frozenset({408, 429})
_FINAL_HINTS: Final = {
    "AccessDenied": "may these keys use this bucket?",
    "403": "may these keys use this bucket?",
    "401": "may these keys use this bucket?",
    "InvalidAccessKeyId": "check TIDELOG_S3_ACCESS_KEY.",
    "SignatureDoesNotMatch": "check TIDELOG_S3_SECRET_KEY.",
    "RequestTimeTooSkewed": "set this machine's clock.",
    "XMinioStorageFull": "free some of its disk, or add drives.",
    "XMinioAdminBucketQuotaExceeded": "raise the bucket's quota.",
    "QuotaExceeded": "raise the bucket's quota.",
    "NoSuchBucket": "create the bucket, or correct TIDELOG_STORE_URL.",
    "InvalidBucketName": "correct TIDELOG_STORE_URL.",
    "AuthorizationHeaderMalformed": "check TIDELOG_S3_REGION.",
    "PermanentRedirect": "check TIDELOG_S3_REGION and the endpoint.",
    "301": "check TIDELOG_S3_REGION and the endpoint.",
}


_PASSING: Final = frozenset({"XMinioStorageFull"})
"""Refusals that a further attempt may still change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Failure:
    status: int
    """The status of the HTTP response; 0 if none came."""
    code: str
    """S3's own code, if the response named one."""
    message: str = ""
    """The store's own message, if the response had one."""
    reason: str
    asked_for_keys: bool = False
    """True if the request for credentials failed."""
    range_ignored: bool = False
    """True if a range was served without status 206."""

    @property
    def name(self) -> str:
        return self.code or str(self.status)

    @property
    def said(self) -> str:
        """What the store said: status, code and message."""
        words = [str(self.status) if self.status else "", self.code]
        name = " ".join(word for word in words if word)
        return f"{name}: {self.message}" if self.message else name

    @property
    def hint(self) -> str:
        """What to do about it; empty if nothing is known."""
        return _FINAL_HINTS.get("NoSuchBucket" if self.is_missing else self.name, "")

    @property
    def is_busy(self) -> bool:
        return self.code in _BUSY or self.status in (429, 503)

    @property
    def is_missing(self) -> bool:
        """True if there is no such object or, for a request without a key, no such bucket."""
        return self.status == 404 and self.code in _MISSING

    @property
    def is_final(self) -> bool:
        """True if no further attempt can change it."""
        if self.is_busy or self.range_ignored or not self.status:
            return False
        retriable = self.status in _RETRIABLE or self.status >= 500
        return not retriable or (self.name in _FINAL_HINTS and self.name not in _PASSING)


def read_failure(error: Exception) -> S3Failure:
    said = str(error)
    sentence, _, behind = said.partition("\n\nDebug source:")
    status, code, message = _STATUS.search(sentence), _CODE.search(sentence), _MESSAGE.search(sentence)
    found = int(status[1]) if status else 404 if isinstance(error, FileNotFoundError) else 0
    if not found and "redirect" in sentence:
        found = 301  # for a bucket in another region, object_store gives no status
    return S3Failure(
        status=found,
        code=code[1] if code else "",
        message=unescape(" ".join(message[1].split()))[:_LONGEST_MESSAGE] if message else "",
        reason=_reason(sentence, behind) or type(error).__name__,
        asked_for_keys=_KEYS_ASKED_OF.search(said) is not None,
        range_ignored=_NO_RANGE in sentence,
    )


def refusal(url: StoreUrl, failure: S3Failure) -> str:
    """The message for people if the store refused."""
    return f"the object store {url} refused ({failure.said}). {_sentence(failure.hint or 'check TIDELOG_STORE_URL.')}"


def lasting(url: StoreUrl, failure: S3Failure, bounds: str) -> str:
    """The message for people if every attempt failed at the store."""
    end = f" {_sentence(failure.hint)}" if failure.hint else ""
    return f"the object store {url} answers with an error ({failure.said}), after {bounds}.{end}"


def _sentence(hint: str) -> str:
    return hint[:1].upper() + hint[1:]


def _reason(sentence: str, behind: str) -> str:
    """A short reason: the sentence without the XML, and the operating system's word if there is one."""
    first = sentence.split("<", 1)[0].strip().rstrip(":")
    cause = _CAUSE.search(behind)
    return f"{first}: {(cause[1] or cause[2] or cause[3]).lower()}" if cause else first
