"""Quotas: enough for how many replicas, and what nobody knows."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.base import Quota
from backends.cloud_run.backend import CloudRunBackend
from backends.tpu.backend import TpuBackend
from core.errors import PermissionDenied, Unsupported
from core.records import Target
from core.settings import Settings
from operations.capacity import QuotaRow, Quotas, read_quotas, row_of
from operations.runtime import Runtime

TARGET = Target(
    name="cloud-run-l4",
    backend="cloud_run",
    description="",
    accelerator="nvidia-l4",
    accelerator_count=1,
    region="us-east4",
)


def row(
    limit: float | None,
    in_use: float | None = None,
    *,
    each: int = 1,
    detail: str = "",
    counts: bool = True,
) -> QuotaRow:
    quota = Quota(
        quota="NvidiaL4",
        region="us-east4",
        accelerator="nvidia-l4",
        limit=limit,
        in_use=in_use,
        detail=detail,
    )
    target = TARGET.model_copy(update={"accelerator_count": each})
    return row_of(target, quota, counts=counts)


@pytest.mark.parametrize(
    ("limit", "in_use", "each", "replicas", "more"),
    [
        (3, 1, 1, 3, 2),
        (3, 0, 2, 1, 1),
        (3, 3, 1, 3, 0),
        (3, 5, 1, 3, 0),
        (0, 0, 1, 0, 0),
        (0.5, 0, 1, 0, 0),
        (3, None, 1, 3, None),
        (None, 1, 1, None, None),
        (None, None, 1, None, None),
    ],
)
def test_a_quota_is_enough_for_so_many_replicas(
    limit: float | None, in_use: float | None, each: int, replicas: int | None, more: int | None
) -> None:
    """By accelerators of one replica; what is not known stays not known."""
    found = row(limit, in_use, each=each)
    assert (found.replicas, found.more) == (replicas, more)


def test_what_is_not_known_is_not_0() -> None:
    """It is told as not known, with why, and no fix is made up."""
    found = Quotas(quotas=(row(None, detail="The API is off."),))
    assert found.summary() == "cloud-run-l4: not known."
    assert found.warnings() == ("cloud-run-l4: The API is off.",)
    assert found.quotas[0].fix is None
    assert found.next_steps() == ()


@pytest.mark.parametrize(("limit", "in_use"), [(0, 0), (2, 2)])
def test_where_nothing_is_left_it_says_how_to_get_more(limit: float, in_use: float) -> None:
    """By the quota's own name, in its region, how many; in words, not by a link."""
    found = Quotas(quotas=(row(limit, in_use),))
    (warning,) = found.warnings()
    assert "search for NvidiaL4, choose us-east4" in warning
    assert f"ask for {in_use + 1:g}" in warning
    assert "http" not in warning


def test_where_there_is_room_nothing_is_warned_of() -> None:
    found = Quotas(quotas=(row(3, 1),))
    assert found.summary() == (
        "cloud-run-l4: 2 replicas more may run (3 nvidia-l4 allowed in us-east4, 1 in use)."
    )
    assert found.warnings() == ()
    assert found.next_steps()[0].arguments == {"targets": ["cloud-run-l4"]}


def test_a_quota_that_does_not_count_is_shown_only() -> None:
    """Deployments are not held to it, so its 0 is no news."""
    found = Quotas(quotas=(row(3, 0), row(0, 0, counts=False)))
    assert found.warnings() == ()
    assert found.summary().count("nvidia-l4") == 1


@pytest.mark.anyio
async def test_one_target_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a row of its own that says why; named alone, it is an error."""

    async def quotas(self: CloudRunBackend | TpuBackend) -> Sequence[Quota]:
        if self.target.name != "cloud-run-l4":
            raise PermissionDenied("Google does not let you.", fix="Ask its owner.")
        return (Quota(quota="q", region="us-east4", accelerator="nvidia-l4", limit=3),)

    for backend in (CloudRunBackend, TpuBackend):
        monkeypatch.setattr(backend, "quotas", quotas)
    settings = Settings(vllm_devops_state_dir=tmp_path, google_cloud_project="p")
    rt = Runtime(settings, frozenset())
    found = await read_quotas(rt, None)
    first, second, *_ = found.quotas
    assert (first.replicas, second.replicas) == (3, None)
    assert "Google does not let you. Ask its owner." in found.warnings()[0]
    with pytest.raises(PermissionDenied):
        await read_quotas(rt, second.target)


@pytest.mark.anyio
async def test_where_no_target_can_be_read_it_is_an_error(tmp_path: Path) -> None:
    """With the fix that belongs to it: here no project is named."""
    rt = Runtime(Settings(vllm_devops_state_dir=tmp_path), frozenset())
    with pytest.raises(Unsupported) as caught:
        await read_quotas(rt, None)
    assert "GOOGLE_CLOUD_PROJECT" in caught.value.fix
