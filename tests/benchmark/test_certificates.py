"""A run on an endpoint that signs for itself: whoever looks and whoever loads trusts it alone."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import numpy as np
import pytest
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSListener

from benchmark.folder import RunFolder
from benchmark.records import RunState, StopRule
from benchmark.run import state_of
from benchmark.samples import Outcome
from simulators.common import certificates
from tests.benchmark import faulty
from tests.benchmark.driven import a_job, outcomes, paced
from tests.benchmark.driven import measured as driven
from tests.benchmark.made import known
from tests.benchmark.sweeping import Door, Workers, a_run, measured
from tests.benchmark.sweeping import no_chart as no_chart  # noqa: PLC0414  a fixture

pytestmark = pytest.mark.anyio


def signed(folder: Path) -> tuple[str, ssl.SSLContext]:
    """A certificate for 127.0.0.1, and who answers with it."""
    pem = certificates.make(folder, "server", ("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / certificates.CERTIFICATE, folder / certificates.KEY)
    return pem, context


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[Door, str]]:
    """An endpoint that speaks TLS, and its certificate."""
    pem, context = signed(tmp_path / "tls")
    door = Door()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610  no Django here
        door.url = f"https://127.0.0.1:{port}"
        front = TLSListener(listener, context, standard_compatible=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.serve, door.answer)  # type: ignore[arg-type]  # a stream is a stream
            yield door, pem
            tasks.cancel_scope.cancel()


async def test_a_run_goes_by_the_certificate_that_is_left_for_it(
    tmp_path: Path, secured: tuple[Door, str]
) -> None:
    """Its looks believe it, and so do the workers; it is no secret and stays with the run."""
    door, pem = secured
    folder = a_run(tmp_path, door.url)
    folder.keep_certificate(pem)
    workers = Workers()
    end = await measured(folder, workers)
    assert (end.state, end.error) == (RunState.DONE, None)
    assert {job.ca_file for job in workers.jobs} == {str(folder.certificate_file)}
    assert folder.certificate() == pem


async def test_without_it_nothing_is_measured(tmp_path: Path, secured: tuple[Door, str]) -> None:
    """Nobody vouches for the endpoint."""
    door, _ = secured
    folder = a_run(tmp_path, door.url)
    end = await measured(folder, Workers())
    assert end.state is RunState.FAILED
    assert "another certificate" in known(end.error).summary
    assert state_of(folder).state is RunState.FAILED


async def test_workers_believe_that_certificate_and_nobody_beside_it(tmp_path: Path) -> None:
    """None at all, or another one for the same address, is refused before a byte is sent."""
    _, context = signed(tmp_path / "tls")
    certificates.make(tmp_path / "other", "server", ("127.0.0.1",))
    async with faulty.faulty(lambda _: paced(), tls=context) as server:
        url = server.base_url.replace("http:", "https:")
        for file in (str(tmp_path / "other" / certificates.CERTIFICATE), None):
            job = a_job(url, tmp_path, ca_file=file, stop=StopRule(max_seconds=60))
            refused = await driven(job)
            assert refused.failed
            assert set(outcomes(refused)) == {Outcome.TLS}
        assert not server.heads
        file = str(tmp_path / "tls" / certificates.CERTIFICATE)
        trusted = await driven(a_job(url, tmp_path, ca_file=file))
    assert trusted.failed is None
    assert set(outcomes(trusted)) <= {Outcome.OK, Outcome.CUT}
    assert np.nanmin(trusted.samples.connect_seconds) > 0


def test_a_certificate_that_is_not_needed_any_more_goes(tmp_path: Path) -> None:
    """A deployment that was made anew may be one that authorities vouch for."""
    folder = RunFolder(tmp_path)
    assert folder.certificate() is None
    folder.keep_certificate("PEM")
    assert folder.certificate() == "PEM"
    folder.keep_certificate(None)
    assert (folder.certificate(), folder.certificate_file.exists()) == (None, False)
