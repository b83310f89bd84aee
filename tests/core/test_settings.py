"""The environment."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from core.environment import inherited_environment
from core.settings import Settings


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("", ()),
        ("all", ("all",)),
        ("plan,deploy", ("plan", "deploy")),
        (" diagnose , ,quota,", ("diagnose", "quota")),
    ],
)
def test_toolsets_are_words_between_commas(
    monkeypatch: pytest.MonkeyPatch, text: str, groups: tuple[str, ...]
) -> None:
    """However they are spaced, and none is none."""
    monkeypatch.setenv("TOOLSETS", text)
    assert Settings().toolsets == groups


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client configurations leave them empty."""
    for name in ("READ_ONLY", "VLLM_API_KEY", "TENSOR_PARALLEL_SIZE", "CONFIRM", "VLLM_BASE_URL"):
        monkeypatch.setenv(name, "")
    assert Settings() == Settings.model_construct()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOOLSETS", "plan,everything"),
        ("READ_ONLY", "perhaps"),
        ("TENSOR_PARALLEL_SIZE", "0"),
        ("TENSOR_PARALLEL_SIZE", "two"),
        ("ENGINE", "sglang"),
        ("CONFIRM", "always"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """It is not passed over in silence."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


def test_settings_do_not_change(settings: Settings) -> None:
    """They are read once."""
    with pytest.raises(ValidationError):
        settings.read_only = True  # type: ignore[misc]  # that is the point


def test_secrets_are_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who asks for them by name gets them."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-mine")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    settings = Settings()
    assert settings.secrets == ("sk-mine", "hf_mine")
    assert "mine" not in f"{settings!r} {settings} {settings.model_dump()}"
    assert Settings(hf_token=None, vllm_api_key=None).secrets == ()


def test_a_child_inherits_everything_but_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH and proxies go on."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-mine")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    child = inherited_environment()
    assert child["HTTPS_PROXY"] == "http://proxy"
    assert "VLLM_API_KEY" not in child


def test_a_file_beside_the_project_is_read_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init.sh` writes it; what stands in the environment wins, what is not ours is passed over."""
    (tmp_path / "env").write_text("MODEL_NAME=from-file\nREAD_ONLY=1\nSOMETHING_ELSE=x\n")
    monkeypatch.setitem(Settings.model_config, "env_file", tmp_path / "env")
    monkeypatch.setenv("MODEL_NAME", "from-environment")
    assert (Settings().model_name, Settings().read_only) == ("from-environment", True)
