"""The steps of a project's set-up for TPUs: APIs, the VMs' account with its roles, the token."""

from backends.google import setup_steps as google
from backends.google.names import RUNTIME_ID
from backends.google.setup_steps import Step
from backends.tpu.needs import needs
from backends.tpu.site import Site


def steps(site: Site) -> tuple[Step, ...]:
    """Give them in the order in which they can be done.

    Raises:
        NotConfigured: No project is named.
    """
    wanted = needs()
    return (
        google.enabled(site, wanted.apis),
        google.runtime(site),
        google.roles(site, RUNTIME_ID, wanted.roles),
        *google.token(site),
    )
