"""Why a TLS handshake failed, in a few reasons that a metric can count. Pure."""

import ssl
from typing import Final

_BAD_CERTIFICATE: Final = frozenset(
    {
        "CERTIFICATE_VERIFY_FAILED",
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "EXCESSIVE_MESSAGE_SIZE",
    }
)
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "BAD_RECORD_TYPE", "UNEXPECTED_MESSAGE"}
)
_NO_COMMON_GROUND: Final = frozenset(
    {"UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW", "TLSV1_ALERT_PROTOCOL_VERSION"}
)


class HandshakeFailed(ConnectionError):
    """`reason` is one of: hung_up, timeout, displaced, not_tls, version, certificate, principal,
    other.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def failure_of(error: ssl.SSLError) -> HandshakeFailed:
    """Returns the failure with OpenSSL's own words."""
    code = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeFailed("certificate", f"{code}: {error.verify_message}")
    if code in _BAD_CERTIFICATE:
        return HandshakeFailed("certificate", code)
    if code in _NOT_TLS:
        return HandshakeFailed("not_tls", code)
    if code in _NO_COMMON_GROUND:
        return HandshakeFailed("version", code)
    return HandshakeFailed("other", code or str(error))
