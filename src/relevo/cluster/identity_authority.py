"""The authority of a cluster: makes its key, signs certificates of nodes and revocations.

Boxes that have `ca.key` sign; other heads pass enrolments on to them. Owns what a certificate contains. Does not know
tokens, nor connections.
"""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from relevo.cluster.identity_folder import (
    CA_CERTIFICATE,
    CA_KEY,
    check_folder,
    locked,
    make_folder,
    read_private,
    write_private,
)
from relevo.cluster.identity_request import private_pem
from relevo.cluster.identity_revoked import Revocation
from relevo.cluster.peer import ENROLMENT_URI, NODE_URI, ROLE_URI, NodeRole, PeerRefused, Refusal
from relevo.core.errors import SettingsError, StartError
from relevo.policy.cluster.lifetimes import BACKDATED_S

_AUTHORITY_LIFE_S = 20 * 365 * 86_400  # arbitrary; it is as long as the cluster's
MAX_REQUEST_CHARS = 4096  # of a request in PEM; ours have 400


class Authority:
    """Made by `load` or `make_ca`."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """None: this box does not sign. Raises StartError."""
        check_folder(folder)
        try:
            key_pem = read_private(folder / CA_KEY)
        except FileNotFoundError:
            return None
        try:
            key = serialization.load_pem_private_key(key_pem, password=None)
            certificate = x509.load_pem_x509_certificate(read_private(folder / CA_CERTIFICATE))
        except (ValueError, FileNotFoundError) as error:
            raise StartError(f"{folder} has no usable {CA_KEY} with its {CA_CERTIFICATE}: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise StartError(f"{folder / CA_KEY} is not the key of {CA_CERTIFICATE}; bring the pair")
        return cls(key, certificate)

    @property
    def certificate_pem(self) -> str:
        return _pem(self._certificate)

    def sign(
        self,
        request_pem: str,
        *,
        name: str,
        role: NodeRole,
        enrolment_id: str,
        life_s: float,
        now_s: Callable[[], float] = time.time,
    ) -> str:
        """A certificate for the key of the request, in PEM; nothing else of the request counts. Raises PeerRefused for
        what is no request, or was not made by who has the key."""
        public_key = request_key(request_pem)
        now = datetime.datetime.fromtimestamp(int(now_s()), datetime.UTC)
        uris = (NODE_URI + name, ROLE_URI + role, ENROLMENT_URI + enrolment_id)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(seconds=BACKDATED_S))
            .not_valid_after(now + datetime.timedelta(seconds=life_s))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris]), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return _pem(builder.sign(self._key, hashes.SHA256()))

    def revoke(self, enrolment_id: str, name: str, now_s: float) -> Revocation:
        """An entry that every node takes, from any node."""
        unsigned = Revocation(enrolment_id, name, int(now_s), "")
        signature = self._key.sign(unsigned.signed_bytes(), ec.ECDSA(hashes.SHA256()))
        return Revocation(enrolment_id, name, unsigned.revoked_at_s, signature.hex())


def make_ca(folder: Path, now_s: Callable[[], float] = time.time) -> Authority:
    """A new authority in this folder, which may not have one. Raises StartError, SettingsError."""
    make_folder(folder)
    check_folder(folder)
    with locked(folder):
        if (folder / CA_CERTIFICATE).exists() or (folder / CA_KEY).exists():
            raise SettingsError(f"{folder} is of a cluster already; choose another --dir, or use what is there")
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("relevo cluster " + secrets.token_hex(4))
        now = datetime.datetime.fromtimestamp(int(now_s()), datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(seconds=BACKDATED_S))
            .not_valid_after(now + datetime.timedelta(seconds=_AUTHORITY_LIFE_S))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        certificate = builder.sign(key, hashes.SHA256())
        write_private(folder / CA_KEY, private_pem(key).encode("ascii"))
        write_private(folder / CA_CERTIFICATE, _pem(certificate).encode("ascii"))
    return Authority(key, certificate)


def is_genuine(revocation: Revocation, authority_pem: str) -> bool:
    """The authority made it."""
    key = x509.load_pem_x509_certificate(authority_pem.encode("ascii")).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(bytes.fromhex(revocation.signature), revocation.signed_bytes(), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def request_key(request_pem: str) -> ec.EllipticCurvePublicKey:
    """The key that a certificate is asked for. Raises PeerRefused."""
    try:
        if len(request_pem) > MAX_REQUEST_CHARS:
            raise ValueError("it is too long")
        request = x509.load_pem_x509_csr(request_pem.encode("ascii"))
        key = request.public_key()
        if not request.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("it is not signed with a key of P-256")
        if not isinstance(key.curve, ec.SECP256R1):
            raise ValueError("its key is not of P-256")
    except Exception as error:  # the parser raises errors of its own for each kind of nonsense
        raise PeerRefused(Refusal.PROTOCOL, f"what was sent is no certificate request: {error}") from error
    return key


def key_digest(request_pem: str) -> str:
    """Of the key that a certificate is asked for. Raises PeerRefused."""
    spki = request_key(request_pem).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA256())
    digest.update(spki)
    return digest.finalize().hex()


def new_enrolment_id() -> str:
    return secrets.token_hex(16)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
