"""IAM policies, read with an etag, refused when it is an old one."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Binding, Policy

from emulators.google.refusing import Refused, invalid
from emulators.google.state import Project

PERMISSIONS: Final[Mapping[str, frozenset[str]]] = {
    "roles/secretmanager.secretAccessor": frozenset({"secretmanager.versions.access"}),
    "roles/run.invoker": frozenset({"run.routes.invoke"}),
    "roles/run.servicesInvoker": frozenset({"run.routes.invoke"}),
    "roles/iam.serviceAccountTokenCreator": frozenset(
        {"iam.serviceAccounts.getOpenIdToken", "iam.serviceAccounts.getAccessToken"}
    ),
    "roles/iam.serviceAccountOpenIdTokenCreator": frozenset({"iam.serviceAccounts.getOpenIdToken"}),
    "roles/iam.serviceAccountUser": frozenset({"iam.serviceAccounts.actAs"}),
    "roles/artifactregistry.reader": frozenset({"artifactregistry.repositories.downloadArtifacts"}),
    "roles/artifactregistry.writer": frozenset(
        {
            "artifactregistry.repositories.downloadArtifacts",
            "artifactregistry.repositories.uploadArtifacts",
        }
    ),
    "roles/logging.logWriter": frozenset({"logging.logEntries.create"}),
    "roles/monitoring.metricWriter": frozenset({"monitoring.timeSeries.create"}),
    "roles/storage.objectViewer": frozenset({"storage.objects.get", "storage.objects.list"}),
}
"""What the roles that are granted here allow, as far as it is asked for.

Source: docs.cloud.google.com/iam/docs/roles-permissions, read 2026-11.
"""
_EVERYBODY: Final = frozenset({"allUsers", "allAuthenticatedUsers"})
_MEMBER: Final = re.compile(r"^(user|serviceAccount|group|domain|principal|principalSet):\S+$")
_ROLE: Final = re.compile(r"^(projects/[^/]+/|organizations/[^/]+/)?roles/[A-Za-z0-9_.]+$")
_PERMISSION: Final = re.compile(r"^[a-z0-9]+(\.[A-Za-z0-9]+){2,}$")
_CONFLICT: Final = (
    "There were concurrent policy changes. Please retry the whole read-modify-write with"
    " exponential backoff."
)


def asked(kept: Policy, request: iam_policy_pb2.GetIamPolicyRequest) -> Policy:
    """Answer one GetIamPolicy; conditions are told to those who ask for version 3.

    Raises:
        Refused: There is no such version.
    """
    version = request.options.requested_policy_version
    if version not in {0, 1, 3}:
        raise invalid(f"Policy version {version} is not supported.")
    found = Policy()
    found.CopyFrom(kept)
    found.etag = _etag(kept)
    if version < 3:
        _hide_conditions(found)
    return found


def replaced(kept: Policy, request: iam_policy_pb2.SetIamPolicyRequest, project: Project) -> Policy:
    """Give what is to be kept after one SetIamPolicy.

    Raises:
        Refused: The etag is that of an older policy; or a role, a member (an account of the
            project must be there) or the version cannot be.
    """
    wanted = request.policy
    if wanted.etag and wanted.etag != _etag(kept):
        raise Refused("ABORTED", _CONFLICT)
    fresh = Policy(version=wanted.version)
    for binding in wanted.bindings:
        _check(binding, wanted.version, project)
        if binding.members:
            fresh.bindings.append(binding)
    return fresh


def answer(kept: Policy) -> Policy:
    """Give a policy as SetIamPolicy answers: as it is, with its new etag."""
    return asked(kept, iam_policy_pb2.GetIamPolicyRequest(options={"requested_policy_version": 3}))


def allowed(
    project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    """Answer one TestIamPermissions: the caller owns the project, but for what is denied.

    Raises:
        Refused: A permission is not one.
    """
    for one in request.permissions:
        if not _PERMISSION.match(one):
            raise invalid(f"Permission {one} is not valid for this resource.")
    denied = project.knobs.denied_permissions
    return iam_policy_pb2.TestIamPermissionsResponse(
        permissions=[one for one in request.permissions if one not in denied]
    )


def granted(kept: Policy, email: str, permission: str) -> bool:
    """Say whether one policy allows it, to an account or to everybody, without a condition."""
    names = {f"serviceAccount:{email}", f"user:{email}", *_EVERYBODY}
    return any(
        permission in PERMISSIONS.get(binding.role, ())
        and not binding.condition.expression
        and names.intersection(binding.members)
        for binding in kept.bindings
    )


def _hide_conditions(policy: Policy) -> None:
    policy.version = 1
    for binding in policy.bindings:
        if binding.HasField("condition"):
            words = binding.condition.SerializeToString(deterministic=True)
            binding.role += f"_withcond_{hashlib.sha256(words).hexdigest()[:20]}"
            binding.ClearField("condition")


def _check(binding: Binding, version: int, project: Project) -> None:
    if not _ROLE.match(binding.role) or "_withcond_" in binding.role:
        raise invalid(f"Role {binding.role} is not supported for this resource.")
    if binding.HasField("condition") and version != 3:
        raise invalid("Policies with conditions must have version 3.")
    for member in binding.members:
        if member not in _EVERYBODY and not _MEMBER.match(member):
            raise invalid(f"Invalid member {member}.")
        kind, _, email = member.partition(":")
        ours = kind == "serviceAccount" and email.endswith(f"@{project.id}.iam.gserviceaccount.com")
        if ours and email not in {*project.accounts, project.caller}:
            raise invalid(f"Service account {email} does not exist.")


def _etag(kept: Policy) -> bytes:
    return hashlib.sha256(kept.SerializeToString(deterministic=True)).digest()[:8]
