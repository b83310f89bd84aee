"""The steps of a project's set-up for TPUs: APIs, the VMs' account with its roles, the token."""

from backends.google import setup as google
from backends.google.clients import RUNTIME_ID
from backends.google.setup import Step
from backends.tpu.needs import needs
from backends.tpu.site import Site


def steps(site: Site) -> tuple[Step, ...]:
    """Give them in the order in which they can be done.

    Raises:
        NotConfigured: No project is named.
    """
    wanted = needs()
    return (
        google.apis_step(site, wanted.apis),
        google.runtime_account_step(site),
        google.roles_step(site, RUNTIME_ID, wanted.roles),
        *google.token_step(site),
    )
