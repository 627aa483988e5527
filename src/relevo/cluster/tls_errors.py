"""What OpenSSL says of a handshake that failed, as reasons and sentences of ours."""

from __future__ import annotations

import ssl

from relevo.cluster.peer import PeerRefused, Refusal

OUT_OF_DATE = {9: "is not valid yet", 10: "has expired"}  # OpenSSL's X509_V_ERR codes
_ALERTS = {  # what the other end says of us
    "CERTIFICATE_EXPIRED": (Refusal.EXPIRED, "says that the certificate of this node has expired; compare the clocks"),
    "CERTIFICATE_REQUIRED": (Refusal.CERTIFICATE, "needs a certificate and this node has none; join the cluster first"),
    "UNKNOWN_CA": (Refusal.CERTIFICATE, "is of another cluster; see which head it joined"),
    "BAD_CERTIFICATE": (Refusal.CERTIFICATE, "does not take the certificate of this node; join again with a new token"),
    "PROTOCOL_VERSION": (Refusal.PROTOCOL, "does not speak TLS 1.3; install the same release on both"),
}


def refusal(error: ssl.SSLError, peer: str) -> PeerRefused:
    """Why one end does not take the other."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = OUT_OF_DATE.get(error.verify_code)
        if why is not None:
            return PeerRefused(Refusal.EXPIRED, f"the certificate of {peer} {why}; compare the clocks of the two boxes")
        return PeerRefused(
            Refusal.CERTIFICATE, f"{peer} is not of this cluster: {error.verify_message}; see which head it joined"
        )
    reason = error.reason or ""
    for alert, (kind, sentence) in _ALERTS.items():
        if "ALERT" in reason and alert in reason:
            return PeerRefused(kind, f"{peer} {sentence}")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return PeerRefused(Refusal.CERTIFICATE, f"{peer} has shown no certificate")
    return PeerRefused(
        Refusal.PROTOCOL, f"{peer} does not speak TLS 1.3 as nodes do ({reason or error}); see what listens there"
    )
