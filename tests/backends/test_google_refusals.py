"""What Google says when it refuses, and what whoever asked is told to do."""

import pytest

from backends.common.refusals import refused

_OFF = "{} has not been used in project {} before or it is disabled. Enable it by visiting …"
_NONE = (
    "Your application is authenticating by using local Application Default Credentials. The"
    " cloudquotas.googleapis.com API requires a quota project, which is not set by default."
)
_MAY_NOT = (
    "Caller does not have required permission to use project mine. Grant the caller the"
    " roles/serviceusage.serviceUsageConsumer role"
)
_REFUSED = (
    # Google's words, our code, what the fix says, and whether setting up is part of it.
    (_NONE, "PERMISSION_DENIED", "set-quota-project", "no"),
    (_OFF.format("Cloud Quotas API", 764086051850), "PERMISSION_DENIED", "set-quota-project", "no"),
    (_OFF.format("Cloud Quotas API", 123456), "API_DISABLED", "123456 is another", "yes"),
    ("SERVICE_DISABLED: run.googleapis.com", "API_DISABLED", "setup_target", "yes"),
    (_MAY_NOT, "PERMISSION_DENIED", "add-iam-policy-binding mine ", "no"),
    ("Permission 'run.services.get' denied", "PERMISSION_DENIED", "owner", "no"),
)


@pytest.mark.parametrize(("words", "code", "fix", "set_up"), _REFUSED)
def test_a_project_that_cannot_be_billed_is_no_reason_to_set_up_again(
    words: str, code: str, fix: str, set_up: str
) -> None:
    """Setting up enables APIs in the project of the settings, which may be another one."""
    error = refused("google", "PERMISSION_DENIED", words, "ask")
    assert (error.code, fix in error.fix) == (code, True), error.fix
    assert ("setup_target" in error.fix) is (set_up == "yes")
