"""Roles on the storage account, given to whoever calls."""

import uuid
from typing import Final

from azure.mgmt.authorization.v2022_04_01 import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients

FILES_WRITER: Final = "69566ab7-960f-475b-8e7c-b3118f30c6bd"
"""Storage File Data Privileged Contributor."""
BLOBS_READER: Final = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
"""Storage Blob Data Reader."""
BLOBS_WRITER: Final = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
"""Storage Blob Data Contributor."""


async def give(clients: Clients, role: str) -> str:
    """Give a role on the account; gives the assignment's name."""
    name, whose = str(uuid.uuid4()), f"/subscriptions/{clients.subscription}"
    definition = f"{whose}/providers/Microsoft.Authorization/roleDefinitions/{role}"
    await (await clients.roles()).role_assignments.create(
        clients.ground.storage_id,
        name,
        M.RoleAssignmentCreateParameters(
            role_definition_id=definition, principal_id=await clients.caller()
        ),
    )
    return name
