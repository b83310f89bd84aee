"""What a deployment needs of the project: APIs, permissions, accounts, and the Hub's token."""

from collections.abc import Iterator
from functools import partial

from backends.cloud_run.names import builder_account
from backends.cloud_run.needs import needed, needs
from backends.cloud_run.seen import may_push
from backends.cloud_run.site import Site
from backends.common.looked import Answer, Question
from backends.google import checks
from backends.google.names import runtime_account
from backends.google.seen import has_roles
from core.records import DeploymentSpec


def questions(site: Site, spec: DeploymentSpec) -> Iterator[Question]:
    """Ask for what every deployment needs, and for the token where weights come from the Hub."""
    wanted, of_it = needs(), needed(spec, site.settings.google_service_account)
    yield checks.reachable(site)
    yield checks.apis(site, [api.name for api in wanted.apis if api.needed_by in of_it])
    yield checks.permissions(site, [one for one in wanted.permissions if one.needed_by in of_it])
    yield from checks.account(site, runtime_account(site.clients.project))
    if spec.engine == "ollama" and not spec.image:
        yield from _of_a_build(site)
    if spec.engine == "vllm" and (spec.weights or "hub") == "hub":
        yield checks.token(site)


def _of_a_build(site: Site) -> Iterator[Question]:
    account = builder_account(site.clients.project)
    yield from checks.account(site, account, "build")
    yield Question(
        "It may push what it builds and write its log", partial(_builder_roles, site, account)
    )


async def _builder_roles(site: Site, account: str) -> Answer:
    wanted = needs()
    found = {
        wanted.repository_roles: await may_push(site),
        wanted.builder_roles: await has_roles(site, account, wanted.builder_roles),
    }
    missing = [role.name for roles, there in found.items() if not there for role in roles]
    if missing:
        detail = f"Missing: {', '.join(missing)}."
        return Answer(passed=False, detail=detail, fix=checks.SET_UP)
    return Answer(passed=True, detail="It has its roles, the one to push on the repository alone.")
