"""Whom an HTTPS client believes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.endpoint import trusted
from core.errors import HostError


@pytest.fixture(autouse=True)
def _made_anew() -> Iterator[None]:
    trusted.cache_clear()
    yield
    trusted.cache_clear()


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_authorities_that_cannot_be_read_are_told_with_the_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    """A proxy's own authority is often set wrong: no traceback, but which variable it is."""
    file = tmp_path / "authorities.pem"
    if text:
        file.write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(HostError, match="SSL_CERT_FILE"):
        trusted()
