"""Tools about models, wherever they are."""

from core.records import Answer
from operations.runtime import Runtime
from tools.surface import LOOKS, RT, ops_tool


@ops_tool("models", LOOKS)
async def list_models(rt: Runtime = RT) -> Answer:
    """List models that plans know: variants, sizes, quantizations, formats, use; what is served."""
    from operations import models

    return await models.catalog(rt)
