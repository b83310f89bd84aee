"""Encrypted endpoints: verified, whatever it costs."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmark.records import StopRule
from benchmark.samples import Outcome
from tests.benchmark import faulty
from tests.benchmark.driven import a_job, measured, outcomes, paced

pytestmark = pytest.mark.anyio

ENDLESS = StopRule(max_seconds=60)


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"use_uvloop": True}


def _certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    file, secret = folder / "ca.pem", folder / "key.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, secret)
    return file, context


async def test_a_certificate_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    """Verification is never off; with the authority's file it holds."""
    file, context = _certificate(tmp_path)
    async with faulty.faulty(lambda _: paced(), tls=context) as server:
        url = server.base_url.replace("http:", "https:")
        refused = await measured(a_job(url, tmp_path, stop=ENDLESS))
        trusted = await measured(a_job(url, tmp_path, ca_file=file))
    assert refused.failed
    assert set(outcomes(refused)) == {Outcome.TLS}
    assert trusted.failed is None
    assert set(outcomes(trusted)) <= {Outcome.OK, Outcome.CUT}
    assert np.nanmin(trusted.samples.connect_seconds) > 0
