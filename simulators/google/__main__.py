"""`python -m simulators.google --folder F [--idle-exit SECONDS]`: a Google Cloud of one's own."""

from typing import Final

from simulators.common.lifetime import main

PACKAGES: Final = (
    "google.cloud.run_v2",
    "google.cloud.secretmanager_v1",
    "google.cloud.logging_v2",
    "google.cloud.monitoring_v3",
    "google.cloud.cloudquotas_v1",
    "google.cloud.devtools.cloudbuild_v1",
    "google.cloud.iam_admin_v1",
    "google.cloud.resourcemanager_v3",
    "google.cloud.service_usage_v1",
    "google.cloud.artifactregistry_v1",
    "google.cloud.aiplatform_v1",
    "google.cloud.tpu_v2",
    "google.cloud.compute_v1",
)
"""Of the SDK: only their models are needed."""

if __name__ == "__main__":
    main("google", PACKAGES)
