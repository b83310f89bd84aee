"""The typed service: what Google's own document says of it, and that it can say no."""

from typing import Any

import pytest

from backends.cloud_run.service import service_of
from backends.google.clients import as_sent
from tests.backends.cloud_run.planned import BUCKET, E4B, L4, QAT_12B, RTX, drawn, planned, site
from tests.backends.discovery import faults

_SERVICE = "GoogleCloudRunV2Service"
_WISHES: dict[str, dict[str, Any]] = {
    "hub": {},
    "bucket": {"weights": BUCKET, "network": "default/inner"},
    "baked": {"weights": "baked", "image": "europe-docker.pkg.dev/p/r/i@sha256:00"},
    "public": {"access": "public", "max_replicas": 3, "min_replicas": 1},
    "ollama": {"engine": "ollama", "model": "gemma3:4b"},
}


@pytest.mark.parametrize("target", [L4, RTX])
@pytest.mark.parametrize("wish", _WISHES)
def test_every_body_is_what_googles_document_describes(target: str, wish: str) -> None:
    """A misspelt or mistyped field would be refused only by the real Google."""
    opened = site(target, hf_token="hf_x", google_cloud_project="p")
    sent = as_sent(service_of(drawn(opened, **_WISHES[wish]), expires_at=1_800_000_000))
    assert faults("run.v2", _SERVICE, sent) == []
    for step in planned(opened, **_WISHES[wish]).steps:
        assert _faults_of(step.request) == []


def _faults_of(request: dict[str, Any]) -> list[str]:
    if "service" in request:
        assert request.keys() == {"parent", "serviceId", "service"}
        return faults("run.v2", _SERVICE, request["service"])
    if "secret" in request:
        assert request.keys() == {"parent", "secretId", "secret"}
        return faults("secretmanager.v1", "Secret", request["secret"])
    if "build" in request:
        return faults("cloudbuild.v1", "Build", request["build"])
    assert request.keys() == {"resource", "policy"}
    return faults("secretmanager.v1", "Policy", request["policy"])


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ({"templates": {}}, "GoogleCloudRunV2Service.templates: unknown"),
        ({"template": {"executionEnvironment": "GEN2"}}, "none of its words"),
        ({"template": {"containers": {}}}, "no array"),
        ({"template": {"maxInstanceRequestConcurrency": "8"}}, "no integer"),
        ({"template": {"gpuZonalRedundancyDisabled": 1}}, "no boolean"),
        ({"template": {"containers": [{"ports": [{"containerPort": True}]}]}}, "no integer"),
        ({"uri": "https://gemma.run.app"}, "only Google sets it"),
        ({"labels": {"team": 7}}, "no string"),
        ({"template": []}, "no object"),
    ],
)
def test_the_check_refuses_what_the_document_does_not_know(
    spoiled: dict[str, Any], said: str
) -> None:
    """A validator that says yes to everything proves nothing."""
    (fault,) = faults("run.v2", _SERVICE, spoiled)
    assert said in fault


def test_the_service_remembers_what_was_asked_for() -> None:
    """Whoever lost the journal can still read spec and fingerprint from the service itself."""
    made = drawn(model=QAT_12B, max_model_len=8192, max_replicas=2)
    service = service_of(made, expires_at=1_800_000_000)
    kind = type(planned().spec)
    read = kind.model_validate_json(service.annotations["vllm-devops/spec"])
    assert read.model == QAT_12B
    assert read.max_model_len == 8192
    assert dict(service.labels) == {
        "managed-by": "vllm-devops-agent",
        "vllm-devops-target": L4,
        "vllm-devops-spec": read.fingerprint,
        "vllm-devops-expires": "1800000000",
    }


def test_a_service_without_a_ttl_has_no_expiry() -> None:
    """An empty label would look overdue."""
    assert "vllm-devops-expires" not in service_of(drawn(model=E4B)).labels
