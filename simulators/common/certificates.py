"""Certificates that sign for themselves, as a VM makes one."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

KEY: Final = "key.pem"
CERTIFICATE: Final = "cert.pem"
BOTH: Final = "both.pem"
"""For a server that wants key and certificate in one file."""
_SIGNS: Final = {"digital_signature", "key_cert_sign"}
_OTHER_USES: Final = {
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("crl_sign", "encipher_only", "decipher_only"),
}


def make(folder: Path, name: str, addresses: tuple[str, ...]) -> str:
    """Write key and certificate there; return the certificate, which is all a client must trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    sans = [_identity(one) for one in ("localhost", *addresses)]
    now, public = datetime.now(UTC), key.public_key()
    usage = x509.KeyUsage(**dict.fromkeys(_SIGNS, True), **dict.fromkeys(_OTHER_USES, False))
    signed = (
        x509.CertificateBuilder(who, who, public, x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName(sans), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for file, held in ((KEY, secret), (CERTIFICATE, signed), (BOTH, secret + signed)):
        (folder / file).touch(mode=0o600)
        (folder / file).write_bytes(held)
    return signed.decode("ascii")


def _identity(named: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(named))
    except ValueError:
        return x509.DNSName(named)
