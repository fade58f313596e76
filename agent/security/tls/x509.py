"""What an agent needs of an X.509 certificate: its subject as Java writes it, and its end. Pure.

Kafka names a client by `X500Principal.getName()`, the RFC 2253 form of Java. OpenSSL's forms differ from it,
and Python's ssl module drops the types of the values, which Java's form needs. So this module reads the
certificate's DER itself. OpenSSL has verified the certificate before.

The form, as Java writes it:
- The last part of the name comes first. The parts of a multi-valued RDN keep their order, joined by `+`.
- CN, C, L, ST, O, OU, STREET, DC and UID have their names. Every other attribute is its number, with its DER
  value in hex: `1.2.840.113549.1.9.1=#16...` is an e-mail address.
- `,=+<>#;"\\` are escaped wherever they stand. Spaces are escaped at both ends. Other characters are not.
"""

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_VERSION: Final = 0xA0
_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, UniversalString, BMPString."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = re.compile(r'([,=+<>#;"\\])')
_ENDS: Final = " \r"
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_LONG_FORM: Final = 0x80


class BadCertificate(ValueError):
    """The bytes are no certificate that this module can read."""


def certificate_of_pem(pem: bytes) -> bytes:
    """Returns the first certificate of a PEM file as DER. Raises BadCertificate."""
    found = _PEM.search(pem)
    if found is None:
        raise BadCertificate("there is no certificate in it")
    try:
        return base64.b64decode(found.group(1))
    except ValueError as error:
        raise BadCertificate(str(error)) from None


def subject_of(certificate: bytes) -> str:
    """Returns the subject of a DER certificate in Java's RFC 2253 form. Raises BadCertificate."""
    return name_of(_fields(certificate)[4][1])


def expires_at_s(certificate: bytes) -> float:
    """Returns the end of the validity of a DER certificate, in seconds since 1970. Raises BadCertificate."""
    times = list(_elements(_fields(certificate)[3][1]))
    if len(times) != 2:
        raise BadCertificate("its validity has no end")
    tag, value = times[1]
    layout = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(tag)
    try:
        return datetime.strptime(value.decode("ascii"), layout or "").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise BadCertificate(f"its validity cannot be read: {error}") from None


def name_of(name: bytes) -> str:
    """Returns the content of a DER `Name` in Java's RFC 2253 form. Raises BadCertificate."""
    parts = []
    for tag, rdn in _elements(name):
        if tag != _SET:
            raise BadCertificate("a name is a sequence of sets")
        parts.append("+".join(_attribute(attribute) for _, attribute in _elements(rdn)))
    return ",".join(reversed(parts))


def _attribute(attribute: bytes) -> str:
    elements = list(_elements(attribute))
    if len(elements) != 2 or elements[0][0] != _OID:
        raise BadCertificate("an attribute is a type and a value")
    (_, oid), (tag, value) = elements
    dotted = _dotted(oid)
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or dotted}=#{_encoded(tag, value).hex()}"
    return f"{keyword}={_escaped(value.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    text = _ESCAPED.sub(r"\\\1", text).replace("\0", "\\00")
    inner = text.strip(_ENDS)
    if not inner:
        return "".join(f"\\{letter}" for letter in text)
    lead, trail = text[: text.index(inner[0])], text[len(text.rstrip(_ENDS)) :]
    return "".join(f"\\{letter}" for letter in lead) + inner + "".join(f"\\{letter}" for letter in trail)


# --- DER


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Returns serial number, signature, issuer, validity, subject and what follows them."""
    outer = list(_elements(certificate))
    if not outer or outer[0][0] != _SEQUENCE:
        raise BadCertificate("a certificate is a sequence")
    signed = next(_elements(outer[0][1]), None)
    if signed is None:
        raise BadCertificate("the certificate is empty")
    fields = [field for field in _elements(signed[1]) if field[0] != _VERSION]
    if len(fields) < 5:
        raise BadCertificate("the certificate has too few fields")
    return fields


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and content of each element."""
    position = 0
    while position < len(data):
        header = data[position : position + 2]
        if len(header) < 2:
            raise BadCertificate("an element is cut off")
        tag, length = header
        position += 2
        if length >= _LONG_FORM:
            count = length - _LONG_FORM
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + length > len(data):
            raise BadCertificate("an element is longer than what holds it")
        yield tag, data[position : position + length]
        position += length


def _encoded(tag: int, value: bytes) -> bytes:
    if len(value) < _LONG_FORM:
        return bytes((tag, len(value))) + value
    length = len(value).to_bytes((len(value).bit_length() + 7) // 8, "big")
    return bytes((tag, _LONG_FORM + len(length))) + length + value


def _dotted(oid: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for octet in oid:
        number = number << 7 | octet & 0x7F
        if not octet & _LONG_FORM:
            numbers.append(number)
            number = 0
    if not numbers:
        raise BadCertificate("an attribute has an empty type")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
