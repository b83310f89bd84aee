"""Models in a bucket: which can be served, and what the others lack."""

from typing import Any

from operations.models import BucketModels, StoredRow


def row(folder: str, **more: Any) -> StoredRow:
    rows: dict[str, Any] = {
        "location": f"gs://weights/{folder}", "model": f"google/{folder}", "files": 3,
        "size_bytes": 2**30, "gib": 1.0, "complete": True,
    }  # fmt: skip
    return StoredRow(**{**rows, **more})


def test_a_complete_model_can_be_served_as_it_lies() -> None:
    """The next step has everything that deploy_vllm wants."""
    found = BucketModels(target="cloud-run-l4", models=(row("a", complete=False), row("b")))
    assert found.summary() == "2 models in the bucket, 1 complete."
    (step,) = found.next_steps()
    assert step.tool == "deploy_vllm"
    assert step.arguments == {
        "target": "cloud-run-l4",
        "model": "google/b",
        "weights": "gs://weights/b",
    }


def test_what_is_not_complete_is_warned_of() -> None:
    """Not complete and not to be told are two things."""
    models = (
        row("a", complete=False, detail="model-2.safetensors is missing."),
        row("b", complete=None, detail="It has no index."),
        row("c"),
    )
    assert BucketModels(target="cloud-run-l4", models=models).warnings() == (
        "gs://weights/a is not complete: model-2.safetensors is missing.",
        "gs://weights/b may be incomplete: It has no index.",
    )
