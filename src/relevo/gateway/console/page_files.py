"""The files of the console's page: their bytes, types, names of versions, and what a browser may do with them.

Read once, from the package; nothing of a server is in them but whether it asks for a key. The policy lets the page load
what this server serves and nothing else: no script or style within the markup, no frame around it, no text as markup.
Sources: W3C Content Security Policy Level 3, Trusted Types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PAGE = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        *("default-src 'self'", "connect-src 'self'", "object-src 'none'", "base-uri 'none'", "form-action 'self'"),
        *("frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # may be kept, and is asked about each time: an upgrade shows at once
}
_NEEDS_NO_KEY, _NEEDS_KEY = b'data-needs-key="no"', b'data-needs-key="yes"'


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    media_type: str

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


@cache
def page_files() -> Mapping[str, PageFile]:
    """By the name below /console/. Only files of known types are served."""
    found: dict[str, PageFile] = {}
    for entry in files(__package__).joinpath("page").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in MEDIA_TYPES and entry.name != PAGE:
            found[entry.name] = PageFile(entry.read_bytes(), MEDIA_TYPES[suffix])
    return found


@cache
def page(*, needs_key: bool) -> PageFile:
    """The page itself, served at / because its addresses are below that."""
    body = files(__package__).joinpath("page", PAGE).read_bytes()
    if needs_key:
        body = body.replace(_NEEDS_NO_KEY, _NEEDS_KEY, 1)
    return PageFile(body, MEDIA_TYPES[".html"])
