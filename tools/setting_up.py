"""Tools that prepare a place before anything is deployed there."""

from typing import Annotated

from pydantic import Field

from core.records import Answer
from operations import preflight
from operations.runtime import Runtime
from tools.confirming import agree
from tools.surface import CREATES, KNOWS, RT, Layout, Text, Whole, ops_tool, said


@ops_tool("deploy", CREATES, default=True)
async def setup_target(
    target: Text = None, confirm: Text = None, rt: Runtime = RT
) -> preflight.SetupReport:
    """Set a cloud target up, once, before the first deployment; asks first and reads back.

    Prepares APIs, service account, roles, registry, storage, network.

    Args:
        confirm: Token from the preview.
    """
    where, backend = preflight.setting_up(rt, target)
    seen = await backend.setup()
    await agree(rt, preflight.to_set_up(where, seen), confirm)
    return await preflight.set_up(rt, where, backend, seen)


@ops_tool("deploy", KNOWS)
async def get_vllm_gpu_deployment_config(
    model: str,
    gpus: Annotated[int, Field(ge=1, le=2)] = 1,
    hosts: Annotated[int, Field(ge=1, le=4)] = 1,
    name: Text = None,
    namespace: str = "default",
    weights: Text = None,
    max_model_len: Whole = None,
    layout: Layout = None,
    image: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Give a Kubernetes (GKE) manifest that serves a model on NVIDIA L4, with its commands.

    Args:
        gpus: L4 of each host.
        hosts: That one replica is spread over.
        weights: hub, gs://BUCKET/FOLDER or pvc:CLAIM/FOLDER.
        image: Best by digest.
    """
    wish = said(locals(), without=("rt",))
    from operations import kubernetes  # noqa: PLC0415  the planner takes 50 ms of the start-up time

    return kubernetes.config(rt.settings, wish)
