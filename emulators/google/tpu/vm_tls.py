"""The key and certificate that a VM makes for its own address, as `openssl req -x509` does."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOST_FOLDER: Final = "/var/lib/vllm-devops/tls"
"""On the VM."""
KEY: Final = "key.pem"
CERTIFICATE: Final = "cert.pem"
BOTH: Final = "both.pem"
"""Of this machine alone, for a server that wants key and certificate in one file."""
_DAYS: Final = 3650
_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def make(folder: Path, name: str, addresses: tuple[str, ...]) -> str:
    """Write key and certificate there; gives the certificate, which is all a client must trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(key, name, addresses).public_bytes(serialization.Encoding.PEM)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = folder / KEY
    kept.touch(mode=0o600)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    kept.write_bytes(secret)
    (folder / CERTIFICATE).write_bytes(certificate)
    both = folder / BOTH
    both.touch(mode=0o600)
    both.write_bytes(secret + certificate)
    return certificate.decode("ascii")


def _signed(
    key: ec.EllipticCurvePrivateKey, name: str, addresses: tuple[str, ...]
) -> x509.Certificate:
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now, public = datetime.now(UTC), key.public_key()
    sans: list[x509.GeneralName] = [x509.DNSName("localhost")]
    sans += [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
    return (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(sans), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_USAGE, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
