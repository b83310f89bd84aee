"""Whom an HTTPS client believes: the usual authorities, or one certificate and nothing else."""

import ssl
from functools import lru_cache

import httpx2

from core.errors import BadReply, HostError


@lru_cache(maxsize=16)
def trusted(certificate: str | None = None) -> ssl.SSLContext:
    """Give the context of one certificate (PEM), or of the authorities that everybody trusts.

    Made once for each: it takes 20 ms, five times what a look at an engine does. A server's name
    or address must be in its certificate all the same.

    Raises:
        BadReply: It is no certificate.
        HostError: SSL_CERT_FILE or SSL_CERT_DIR names authorities that cannot be read.
    """
    if certificate is None:
        return _usual()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be an authority's
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError) as exc:
        raise BadReply(
            "What the VM published is not a certificate.",
            fix="Call get_logs; deploy it again if its VM cannot make one.",
            cause=str(exc),
        ) from exc
    return context


def _usual() -> ssl.SSLContext:
    try:
        return httpx2.create_ssl_context()
    except (OSError, ssl.SSLError) as exc:
        raise HostError(
            "SSL_CERT_FILE, or SSL_CERT_DIR, names no certificates.",
            fix="Correct it, or unset it.",
            cause=str(exc),
        ) from exc
