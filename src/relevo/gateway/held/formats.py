"""The `format`s of strings that are held, each as a pattern of the whole text; what others do is the policy's.

Where a format has more than one form the narrowest one that all readers take is held. Sources: RFC 3339 (dates), 5321
(e-mail), 1123 (host names), 4291 (IPv6), 9562 (UUID), 3986 (URI), 6901 (JSON pointers), 4648 (base64).
"""

from __future__ import annotations

from functools import cache

from relevo.gateway.held.patterns.nodes import Node
from relevo.gateway.held.patterns.reader import read_pattern
from relevo.gateway.held.patterns.whole import whole_pattern

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY_IN_ANY_MONTH = "(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY_IN_ANY_MONTH}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    f"|{_LEAP}-02-29)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,5}}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        f"::(?:{_GROUP}(?::{_GROUP}){{0,6}})?",
        *(
            f"{_GROUP}(?::{_GROUP}){{{before - 1}}}::(?:{_GROUP}(?::{_GROUP}){{0,{6 - before}}})?"
            for before in range(1, 7)
        ),
        f"{_GROUP}(?::{_GROUP}){{6}}::",
    ]
)
_URI_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_URI_REST = rf"(?:/{_URI_CHARACTER}*)*(?:\?(?:{_URI_CHARACTER}|[/?])*)?(?:#(?:{_URI_CHARACTER}|[/?])*)?"
_AUTHORITY = rf"(?:[A-Za-z0-9._~-]+@)?{_HOST}(?::[0-9]{{1,4}})?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]{{0,20}}:(?://{_AUTHORITY}{_URI_REST}|{_URI_CHARACTER}+{_URI_REST})"
_DURATION = (
    "P(?:[0-9]{1,6}W|(?:[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}D)"
    "(?:T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S))?"
    "|T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S))"
)
_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_POINTER = "(?:/(?:[^/~]|~[01])*)*"

FORMATS = {
    "date-time": f"{_DATE}T{_CLOCK}{_ZONE}",
    "date": _DATE,
    "time": f"{_CLOCK}{_ZONE}",
    "duration": _DURATION,
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL}){{1,5}}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "uri": _URI,
    "url": rf"https?://{_AUTHORITY}{_URI_REST}",
    "uri-reference": rf"(?:{_URI}|{_URI_REST})",
    "json-pointer": _POINTER,
    "byte": _BASE64,
    "base64": _BASE64,
}
# No text is excluded by these: they say how a text is used, or which size a number has in a program.
FREE_FORMATS = frozenset(("password", "binary", "textarea", "multiline", "string", "markdown", "float", "double"))
INTEGER_FORMATS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "uint32": (0, 2**32 - 1)}


@cache
def format_node(name: str) -> Node:
    """Raises KeyError for a format that is not held."""
    return whole_pattern(read_pattern(f"^(?:{FORMATS[name]})$"))
