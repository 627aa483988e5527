"""A node's key, and the request for its certificate. The key never leaves the box that made it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from relevo.cluster.identity_folder import CA_CERTIFICATE, NODE, locked, make_folder, write_private


@dataclass(frozen=True, slots=True)
class KeyAndRequest:
    """`request_pem` may be told to others; it proves that who made it has the key."""

    key_pem: str
    request_pem: str


def new_request(name: str) -> KeyAndRequest:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return KeyAndRequest(
        key_pem=private_pem(key), request_pem=request.public_bytes(serialization.Encoding.PEM).decode("ascii")
    )


def keep_identity(folder: Path, key_pem: str, certificate_pem: str, authority_pem: str) -> None:
    """On the disk when this returns, for the next handshake. Raises StartError."""
    make_folder(folder)
    with locked(folder):
        write_private(folder / CA_CERTIFICATE, authority_pem.encode("ascii"))
        write_private(folder / NODE, (key_pem + certificate_pem).encode("ascii"))


def private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode("ascii")
