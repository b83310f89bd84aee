"""IAM admin v1: the service accounts of a project."""

import re
from typing import Any, Final

import grpc.aio
from google.cloud.iam_admin_v1.types import (
    CreateServiceAccountRequest,
    DeleteServiceAccountRequest,
    GetServiceAccountRequest,
    ListServiceAccountsRequest,
    ListServiceAccountsResponse,
    ServiceAccount,
)
from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Policy
from google.protobuf.empty_pb2 import Empty

from emulators.google import policies
from emulators.google.paging import page_of
from emulators.google.refusing import Refused, invalid
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

_ID: Final = re.compile(r"^[a-z](?:[-a-z0-9]{4,28}[a-z0-9])$")
_NAME: Final = re.compile(r"^projects/[^/]+/serviceAccounts/(?P<email>[^/]+)$")
_MOST: Final = 100
"""Accounts of a project. Source: docs.cloud.google.com/iam/quotas, read 2026-11."""


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "CreateServiceAccount": unary(
            CreateServiceAccountRequest, ServiceAccount, _create, _may("create")
        ),
        "GetServiceAccount": unary(GetServiceAccountRequest, ServiceAccount, _get, _may("get")),
        "ListServiceAccounts": unary(
            ListServiceAccountsRequest, ListServiceAccountsResponse, _list, _may("list")
        ),
        "DeleteServiceAccount": unary(DeleteServiceAccountRequest, Empty, _delete, _may("delete")),
        "GetIamPolicy": unary(
            iam_policy_pb2.GetIamPolicyRequest, Policy, _get_policy, _may("getIamPolicy")
        ),
        "SetIamPolicy": unary(
            iam_policy_pb2.SetIamPolicyRequest, Policy, _set_policy, _may("setIamPolicy")
        ),
        "TestIamPermissions": unary(
            iam_policy_pb2.TestIamPermissionsRequest,
            iam_policy_pb2.TestIamPermissionsResponse,
            _test_permissions,
        ),
    }
    add(server, world, "google.iam.admin.v1.IAM", methods, api="iam.googleapis.com")


def email_of(project: Project, name: str) -> str:
    """Find the account that a full name means; its last part may be the unique id.

    Raises:
        Refused: There is none.
    """
    found = _NAME.match(name)
    if found is None:
        raise invalid(f"The service account name {name} is not valid.")
    for email, account in project.accounts.items():
        if found["email"] in {email, account.unique_id or email}:
            return email
    raise Refused("NOT_FOUND", f"Unknown service account: {found['email']}.")


def _may(what: str) -> str:
    return f"iam.serviceAccounts.{what}"


async def _create(
    _world: World, project: Project, request: CreateServiceAccountRequest
) -> ServiceAccount:
    if not _ID.match(request.account_id):
        raise invalid(f'"{request.account_id}" does not match the format of an account id.')
    email = f"{request.account_id}@{project.id}.iam.gserviceaccount.com"
    name = f"projects/{project.id}/serviceAccounts/{email}"
    if email in project.accounts:
        raise Refused(
            "ALREADY_EXISTS",
            f"Service account {request.account_id} already exists within project"
            f" projects/{project.id}.",
        )
    if len(project.accounts) >= _MOST:
        raise Refused(
            "RESOURCE_EXHAUSTED", "Maximum number of service accounts on project reached."
        )
    account = ServiceAccount(request.service_account)
    account.name, account.email, account.project_id = name, email, project.id
    account.unique_id = f"{int(project.number) * 10**9 + len(project.accounts):021d}"
    project.accounts[email] = account
    return account


async def _get(
    _world: World, project: Project, request: GetServiceAccountRequest
) -> ServiceAccount:
    found: ServiceAccount = project.accounts[email_of(project, request.name)]
    return found


async def _list(
    _world: World, project: Project, request: ListServiceAccountsRequest
) -> ListServiceAccountsResponse:
    rows: list[Any] = list(project.accounts.values())
    page, token = page_of(rows, request.page_size, request.page_token, most=100, usual=20)
    return ListServiceAccountsResponse(accounts=page, next_page_token=token)


async def _delete(_world: World, project: Project, request: DeleteServiceAccountRequest) -> Empty:
    email = email_of(project, request.name)
    del project.accounts[email]
    project.account_policies.pop(email, None)
    return Empty()


async def _get_policy(
    _world: World, project: Project, request: iam_policy_pb2.GetIamPolicyRequest
) -> Policy:
    email = email_of(project, request.resource)
    return policies.asked(project.account_policies.get(email, Policy()), request)


async def _set_policy(
    _world: World, project: Project, request: iam_policy_pb2.SetIamPolicyRequest
) -> Policy:
    email = email_of(project, request.resource)
    kept = policies.replaced(project.account_policies.get(email, Policy()), request, project)
    project.account_policies[email] = kept
    return policies.answer(kept)


async def _test_permissions(
    _world: World, project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    email_of(project, request.resource)
    project.tested += request.permissions
    return policies.allowed(project, request)
