"""Whether a server speaks TLS, and with which files. Imports no HTTP: the command tries the files before it starts."""

from __future__ import annotations

from relevo.build.configs import HttpConfig
from relevo.core.errors import SettingsError
from relevo.gateway.http.tls import RenewingContext, TlsContext, TlsFiles, no_tls


def build_tls(config: HttpConfig) -> TlsContext:
    """Raises SettingsError, TlsError."""
    if not config.ssl_certfile:
        if config.ssl_keyfile or config.ssl_ca_certs or config.ssl_cert_reqs:
            raise SettingsError("--ssl-keyfile, --ssl-ca-certs and --ssl-cert-reqs need --ssl-certfile; add it")
        return no_tls
    if bool(config.ssl_ca_certs) != bool(config.ssl_cert_reqs):
        raise SettingsError(
            "--ssl-ca-certs says who may sign certificates of clients and --ssl-cert-reqs 1 or 2 that they are asked "
            "for; give both or neither"
        )
    return RenewingContext(
        TlsFiles(
            certfile=config.ssl_certfile,
            keyfile=config.ssl_keyfile,
            keyfile_password=config.ssl_keyfile_password,
            ca_certs=config.ssl_ca_certs,
            cert_reqs=config.ssl_cert_reqs,
        )
    )
