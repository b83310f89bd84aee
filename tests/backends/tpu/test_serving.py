"""What serves on a VM: flags that chips and model ask for, the disk, the key, the certificate."""

from typing import Any

import pytest

from backends.tpu.vm import guard_of, with_flags
from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape
from planner.model import read_model
from tests.backends.tpu.planned import BARE, DENSE, E4B, EIGHT, FOUR, MOE, ONE, drawn, spec
from tests.backends.tpu.sites import offline

_HUGE = ModelShape(model="some/400b", weight_bytes=800 * 10**9)


def _args(target: str = ONE, **said: Any) -> tuple[str, ...]:
    return drawn(target, **said).container.args


def test_a_model_is_spread_over_every_chip() -> None:
    """A chip that is left over is paid for; 1 is what a spec says that says nothing."""
    for target, chips in ((ONE, 1), (FOUR, 4), (EIGHT, 8)):
        assert drawn(target).spec.tensor_parallel_size == chips
        assert drawn(target, tensor_parallel_size=chips).spec.tensor_parallel_size == chips
    words = _args(FOUR)
    assert words[words.index("--tensor-parallel-size") + 1] == "4"
    assert "--tensor-parallel-size" not in _args(ONE)


@pytest.mark.parametrize(
    "said",
    [
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 8},
        {"engine_args": ("-tp", "2")},
        {"engine_args": ("--tensor_parallel_size=8",)},
        {"engine_args": ("--pipeline-parallel-size", "4")},
        {"engine_args": ("-dp=2",)},
    ],
)
def test_another_spread_is_refused(said: dict[str, Any]) -> None:
    """tpu-inference takes all chips of a VM, or dies."""
    with pytest.raises(InvalidArgument, match="all 4 chips"):
        drawn(FOUR, **said)


def test_gemma_4_is_started_so_that_it_takes_images() -> None:
    """An image is read in one piece, so a batch must hold all of it."""
    words = _args()
    assert "--disable-chunked-mm-input" in words
    assert words[words.index("--max-num-batched-tokens") + 1] == "4096"
    assert words[words.index("--limit-mm-per-prompt") + 1] == '{"image": 4, "audio": 1}'
    no_audio = _args(FOUR, model=MOE)
    assert no_audio[no_audio.index("--limit-mm-per-prompt") + 1] == '{"image": 4}'


@pytest.mark.parametrize(
    "said",
    [
        {"max_num_batched_tokens": 8192},
        {"engine_args": ("--max_num_batched_tokens=8192",)},
        {"engine_args": ("--limit_mm_per_prompt", '{"image": 1}')},
        {"engine_args": ("--disable_chunked_mm_input",)},
    ],
)
def test_what_is_said_is_not_said_twice(said: dict[str, Any]) -> None:
    """The caller's own word stands."""
    words = [word.partition("=")[0].replace("_", "-") for word in _args(**said)]
    for flag in ("batched-tokens", "limit-mm-per-prompt", "chunked-mm-input"):
        assert sum(word.endswith(flag) for word in words) == 1
    assert "4096" not in _args(**said) or "batched" not in str(said)


@pytest.mark.parametrize(
    "said",
    [{"max_num_batched_tokens": 2048}, {"engine_args": ("--max-num-batched-tokens", "1024")}],
)
def test_batches_too_small_for_an_image_are_refused(said: dict[str, Any]) -> None:
    """The engine would refuse them ten minutes later."""
    with pytest.raises(InvalidArgument, match="2496 of an image") as refused:
        drawn(**said)
    assert "--language-model-only" in refused.value.fix


def test_text_alone_needs_none_of_that() -> None:
    """Without its towers the model is like any other; so is one that nobody knows."""
    for words in (
        _args(engine_args=("--language-model-only",), max_num_batched_tokens=1024),
        drawn(shape=BARE, model="someone/else").container.args,
    ):
        assert not [word for word in words if "-mm-" in word]


@pytest.mark.parametrize("model", [E4B, MOE])
def test_flags_that_are_filled_in_stay_as_they_are(model: str) -> None:
    """What a deployment's metadata says can be deployed again, and is the same."""
    once = with_flags(spec(model), read_model(model), 4)
    assert with_flags(once, read_model(model), 4) == once
    assert isinstance(once, DeploymentSpec)


def test_a_disk_holds_image_weights_and_more() -> None:
    """T48: 10 GB, the default, end in "no space left on device"; nobody knowing is planned for."""
    assert drawn().disk_gb == 200
    assert drawn(FOUR, shape=_HUGE, control_plane="compute").disk_gb >= 800 + 30
    assert drawn(shape=BARE, model="someone/else").disk_gb == 300
    assert any("not known" in doubt for doubt in drawn(shape=BARE, model="someone/else").doubts)


def test_weights_too_large_for_a_nodes_disk_lie_in_memory() -> None:
    """T48: a node of the queue has 100 GB, and only flex-start can ask for more."""
    made = drawn(FOUR, model=DENSE)
    assert made.container.env["HF_HOME"].startswith("/dev/shm/")  # noqa: S108  the engine's
    assert any("in the VM's memory" in doubt for doubt in made.doubts)
    for other in (
        drawn(FOUR),
        drawn(f"{FOUR}-flex", model=DENSE),
        drawn(FOUR, model=DENSE, control_plane="compute"),
    ):
        assert other.container.env["HF_HOME"] == "/cache/hub"


def test_a_node_that_has_room_nowhere_is_not_asked_for() -> None:
    """Compute Engine's disk can be as large as it must; the reason is told."""
    made = drawn(ONE, shape=_HUGE)
    assert {place.plane for place in made.places} == {"compute"}
    assert any("100 GB" in doubt for doubt in made.doubts)
    with pytest.raises(InvalidArgument, match="does not fit on a node") as refused:
        drawn(ONE, shape=_HUGE, control_plane="queued")
    assert "control_plane=compute" in refused.value.fix
    assert drawn(f"{ONE}-flex", shape=_HUGE, control_plane="queued").disk_gb >= 800


def test_weights_come_from_the_hub_or_with_the_image() -> None:
    """What a VM would have to copy first is refused, kindly."""
    baked = drawn(weights="baked", image="us-docker.pkg.dev/p/r/baked:1")
    assert baked.container.env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HOME" not in baked.container.env
    assert (
        "HF_TOKEN"
        not in drawn(
            offline(hf_token="hf_x"), weights="baked", image="us-docker.pkg.dev/p/r/baked:1"
        ).container.secrets
    )


def test_the_token_of_the_hub_is_read_where_one_is_kept() -> None:
    """By the VM itself; without the secret it would not start (T45)."""
    assert "HF_TOKEN" not in drawn().container.secrets
    kept = drawn(offline(hf_token="hf_secret"))
    assert kept.container.secrets["HF_TOKEN"] == "hf-token"
    assert "hf_secret" not in kept.model_dump_json()


def test_the_proxy_speaks_tls_but_inside_a_tunnel() -> None:
    """A key over plain HTTP can be read by whoever is on the way; the engine is on no way."""
    for access in ("private", "public", "internal"):
        made = drawn(access=access)
        words = made.container.args
        assert words[words.index("--host") + 1] == "127.0.0.1"
        assert not [word for word in words if "ssl" in word]
        said = guard_of(made).env["GUARD_CONFIGURATION"]
        assert ("ssl_certificate /tls/cert.pem" in said) == made.opened == (access != "internal")


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        ({"quantization": "fp8"}, None),
        ({}, ModelShape(model="m", quantization="fp8", weight_bytes=10**10)),
        ({}, ModelShape(model="m", quantization_bits=8, weight_bytes=10**10)),
        ({"kv_cache_dtype": "fp8"}, None),
        ({"engine_args": ("--kv-cache-dtype=fp8_e5m2",)}, None),
    ],
)
def test_fp8_is_said_to_be_storage_alone(said: dict[str, Any], shape: ModelShape | None) -> None:
    """T51: a v6e does not reckon in it."""
    assert any("fp8" in doubt for doubt in drawn(shape=shape, **said).doubts)
    assert not any("fp8" in doubt for doubt in drawn().doubts)
