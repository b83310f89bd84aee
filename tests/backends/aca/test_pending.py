"""What waits for its environment is remembered by every server on this machine."""

import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backends.aca import app
from backends.aca.app import Pending, blueprint
from backends.aca.site import Site
from core.errors import Busy
from core.records import Failure
from tests.backends.aca.planned import SMALL, site, spec

pytestmark = pytest.mark.anyio


def _site(folder: Path, subscription: str = "mine") -> Site:
    opened = site(azure_subscription_id=subscription)
    return Site(
        target=opened.target, settings=opened.settings, clients=opened.clients, folder=folder / "a"
    )


def _waiting(site: Site, name: str = "gemma") -> Pending:
    wanted = spec(model=SMALL.model, name=name)
    return Pending(
        spec=wanted,
        model=SMALL,
        blueprint=blueprint(site, wanted, SMALL),
        since=datetime(2026, 11, 21, tzinfo=UTC),
        phase="creating the environment",
    )


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    """Blueprint, model and failure as well; a second time replaces the first."""
    site = _site(tmp_path)
    first = _waiting(site)
    app.keep_pending(site, first)
    assert app.pending_of(site, "gemma") == first
    failure = Failure(code="QUOTA_EXCEEDED", cause="Too many.", fix="Ask for more.")
    later = first.model_copy(update={"failure": failure})
    app.keep_pending(site, later)
    assert app.pending_of(site, "gemma") == later
    assert later.name == "gemma"


def test_it_is_for_this_user_only_and_whole_or_not_there(tmp_path: Path) -> None:
    """Nothing else lies beside it."""
    site = _site(tmp_path)
    app.keep_pending(site, _waiting(site))
    (file,) = site.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(site.folder.stat().st_mode) == 0o700


def test_all_of_them_are_given_by_name(tmp_path: Path) -> None:
    """What is no deployment is none."""
    site = _site(tmp_path)
    assert app.all_pending(site) == ()
    for name in ("qwen", "gemma"):
        app.keep_pending(site, _waiting(site, name))
    (site.folder / "half.json").write_text("{")
    assert [one.name for one in app.all_pending(site)] == ["gemma", "qwen"]
    assert app.pending_of(site, "half") is None


def test_that_of_another_subscription_is_none_here(tmp_path: Path) -> None:
    """Names are the same there, but not what they stand on."""
    app.keep_pending(_site(tmp_path), _waiting(_site(tmp_path)))
    other = _site(tmp_path, "theirs")
    assert app.pending_of(other, "gemma") is None
    assert app.all_pending(other) == ()


def test_those_of_every_target_in_the_group_are_seen_together(tmp_path: Path) -> None:
    """They will stand on the same; those of another group will not."""
    mine, theirs = _site(tmp_path), _site(tmp_path, "theirs")
    beside = replace(mine, folder=tmp_path / "b")
    app.keep_pending(mine, _waiting(mine, "qwen"))
    app.keep_pending(beside, _waiting(mine, "gemma"))
    app.keep_pending(theirs, _waiting(theirs, "far"))
    assert [one.name for one in app.pending_in_group(mine)] == ["gemma", "qwen"]


def test_what_is_forgotten_is_gone_and_twice_is_harmless(tmp_path: Path) -> None:
    """It is told whether there was one; a name that can be none is none."""
    site = _site(tmp_path)
    app.keep_pending(site, _waiting(site))
    assert app.forget_pending(site, "gemma")
    assert not app.forget_pending(site, "gemma")
    assert not app.forget_pending(site, "../gemma")
    assert app.pending_of(site, "../gemma") is None


async def test_one_server_at_a_time_changes_a_deployment(tmp_path: Path) -> None:
    """Another deployment's lock is another one; afterwards nothing is left of either."""
    site = _site(tmp_path)
    async with app.locked(site, "gemma"), app.locked(site, "qwen"):
        with pytest.raises(Busy):
            async with app.locked(site, "gemma", seconds=0.01):
                pass
    async with app.locked(site, "gemma", seconds=0.01):
        pass
    assert list(site.folder.iterdir()) == []
