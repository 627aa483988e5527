"""A join token as text: what its reader must pin, and the secret that lets it in.

`relevo-join-` and base64url of the authority's fingerprint, the secret and a checksum; `:NAME` where it is for one
node. Never on a command line, which every user of a machine can read: it comes from a file or from RELEVO_JOIN_TOKEN.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from relevo.cluster.peer import is_node_name
from relevo.core.errors import SettingsError

log = logging.getLogger("relevo.cluster")

VARIABLE = "RELEVO_JOIN_TOKEN"
_PREFIX = "relevo-join-"
_FINGERPRINT_BYTES, SECRET_BYTES, _CHECK_BYTES = 32, 24, 4
_MAX_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class JoinToken:
    """`fingerprint`: SHA-256 of the authority's certificate. `name`: the only one it is for; empty: any."""

    fingerprint: bytes
    secret: bytes = field(repr=False)
    name: str = ""

    @property
    def digest(self) -> str:
        """What is kept of it where it was made."""
        return hashlib.sha256(b"relevo join token\0" + self.secret).hexdigest()

    def text(self) -> str:
        body = self.fingerprint + self.secret
        encoded = base64.urlsafe_b64encode(body + _check(body, self.name)).decode("ascii")
        return _PREFIX + encoded + (f":{self.name}" if self.name else "")

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """`source`: as sentences call where it came from; the token itself is never shown. SettingsError."""
        encoded, _, name = text.strip().removeprefix(_PREFIX).partition(":")
        try:
            raw = base64.b64decode(encoded, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        body, check = raw[: _FINGERPRINT_BYTES + SECRET_BYTES], raw[_FINGERPRINT_BYTES + SECRET_BYTES :]
        is_whole = len(check) == _CHECK_BYTES and check == _check(body, name) and text.strip().startswith(_PREFIX)
        if not is_whole or (name and not is_node_name(name)):
            raise SettingsError(
                f"{source} is no join token, or not all of one; give the whole line that `relevo cluster token` printed"
            )
        return cls(body[:_FINGERPRINT_BYTES], body[_FINGERPRINT_BYTES:], name)


def read_join_token(file: Path | None, environ: Mapping[str, str] = os.environ) -> JoinToken:
    """From the file, else from RELEVO_JOIN_TOKEN. SettingsError. A file that others can read is warned of."""
    if file is None:
        text = environ.get(VARIABLE, "")
        if not text.strip():
            raise SettingsError(
                f"a join token is needed: put what `relevo cluster token` printed into a file and give --token-file, "
                f"or set {VARIABLE}"
            )
        return JoinToken.parse(text, VARIABLE)
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise SettingsError(f"--token-file {file} cannot be read: {error.strerror}") from error
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning(
            "--token-file %s can be read by other users of this machine, who could join with it; run: chmod 600 %s",
            file,
            file,
        )
    return JoinToken.parse(content.decode("ascii", "replace"), f"--token-file {file}")


def _check(body: bytes, name: str) -> bytes:
    return hashlib.sha256(b"check\0" + body + name.encode()).digest()[:_CHECK_BYTES]
