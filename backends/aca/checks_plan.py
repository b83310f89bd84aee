"""Whether the app's name, its image and the Hub's token are there for the plan."""

from collections.abc import Iterator
from functools import partial

from backends.aca import images, looking, policies, secrets, tags
from backends.aca.blueprint import blueprint
from backends.aca.ground_vault import answers
from backends.aca.names import HF_SECRET
from backends.aca.site import Site
from backends.aca.stands import Stand
from backends.common.preflight import Answer, Question
from core.cloud_errors import CloudRefused
from core.plans import Plan


def questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what the plan names."""
    yield Question("The container image is there", partial(_image, site, plan))
    if plan.spec.from_hub:
        yield Question("Replicas get the Hub's token if one is needed", partial(_token, site))
    yield Question("No policy forbids it", partial(_policies, site, plan))
    yield Question(f"The name {plan.spec.name} is free or yours", partial(_name, site, plan))


async def _image(site: Site, plan: Plan) -> Answer:
    image = blueprint(site, plan.spec, plan.model).container.image
    try:
        pinned = await images.pinned(site, image)
    except CloudRefused as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    if pinned is None:
        return Answer(passed=None, detail=f"The registry of {image} cannot be asked from here.")
    return Answer(passed=True, detail=pinned)


async def _policies(site: Site, plan: Plan) -> Answer:
    refusal = await policies.forbidden(site, blueprint(site, plan.spec, plan.model))
    if refusal:
        return Answer(passed=False, detail=refusal.summary, fix=refusal.fix)
    return Answer(passed=True, detail="Azure knows of none.")


async def _token(site: Site) -> Answer:
    if site.settings.hf_token:
        return Answer(passed=True, detail=f"Your HF_TOKEN is kept in the vault as {HF_SECRET}.")
    if await answers(site) is not Stand.THERE:
        return Answer(passed=None, detail="The vault does not answer yet, and HF_TOKEN is not set.")
    if await secrets.exists(site, HF_SECRET):
        return Answer(passed=True, detail=f"The vault keeps {HF_SECRET}.")
    return Answer(passed=True, detail="None is kept: enough for a model that is not gated.")


async def _name(site: Site, plan: Plan) -> Answer:
    found = await looking.app_there(site, plan.spec.name)
    if found is None:
        return Answer(passed=True, detail="Nothing of that name is there.")
    if not tags.ours(found.tags):
        return Answer(
            passed=False,
            detail=f"An app {plan.spec.name} is there that was not made here.",
            fix="Choose another name: it is left alone.",
        )
    owner = tags.target_in(found.tags)
    if owner != site.target.name:
        return Answer(
            passed=False,
            detail=f"It is a deployment of {owner}.",
            fix=f"Choose another name, or destroy it on {owner} first.",
        )
    return Answer(passed=True, detail="It is this deployment, which would be changed.")
