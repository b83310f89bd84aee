"""Tools about models and tokens, wherever they are."""

from core.records import Answer
from operations.runtime import Runtime
from tools.surface import CREATES, LOOKS, RT, Text, ops_tool


@ops_tool("models", LOOKS)
async def list_models(rt: Runtime = RT) -> Answer:
    """List models that plans know: variants, sizes, quantizations, formats, use; what is served."""
    from operations import models

    return await models.catalog(rt)


@ops_tool("models", CREATES)
async def save_hf_token(
    token: Text = None, env: Text = None, file: Text = None, target: Text = None, rt: Runtime = RT
) -> Answer:
    """Save or rotate a Hugging Face token for gated models; it is never shown again.

    The Hub validates it, and a secret keeps it where deployments read it.

    Args:
        token: Better env or file: then you never see it.
        env: Variable of the server; HF_TOKEN if all are left out.
        file: Such as ~/.cache/huggingface/token.
    """
    from operations import models

    return await models.save(rt, token=token, env=env, file=file, target=target)


@ops_tool("models", LOOKS)
async def list_bucket_models(bucket: Text = None, target: Text = None, rt: Runtime = RT) -> Answer:
    """List the models in a bucket or share: checkpoints, sizes, complete or what is missing.

    Args:
        bucket: Or files://SHARE/FOLDER; left out, BUCKET_NAME or Azure's share.
    """
    from operations import models

    return await models.models_in_bucket(rt, bucket, target)


@ops_tool("models", LOOKS)
async def list_vertex_models(target: Text = None, rt: Runtime = RT) -> Answer:
    """List the models of Vertex AI's registry; the first call imports for about a second."""
    from operations import models

    return await models.models_in_registry(rt, target)


@ops_tool("models", LOOKS)
async def get_huggingface_model_copy_instructions(
    model: str, bucket: Text = None, target: Text = None, rt: Runtime = RT
) -> Answer:
    """Give the commands that copy a model's weights from Hugging Face to a bucket or file share.

    Args:
        bucket: Or gs://BUCKET/FOLDER, files://SHARE/FOLDER.
    """
    from operations import models

    return models.from_the_hub(rt, model, bucket, target)


@ops_tool("models", LOOKS)
async def get_vertex_ai_model_copy_instructions(
    model: str, bucket: Text = None, rt: Runtime = RT
) -> Answer:
    """Give the commands that copy a model's files from Vertex AI's registry into a bucket.

    Args:
        model: Name, id or title, as list_vertex_models shows it.
        bucket: Or gs://BUCKET/FOLDER; left out, BUCKET_NAME.
    """
    from operations import models

    return models.from_vertex(rt, model, bucket)


@ops_tool("models", LOOKS)
async def get_huggingfacehub_download_path(
    model: str,
    rt: Runtime = RT,  # noqa: ARG001  every tool has it
) -> Answer:
    """Say where Hugging Face's cache keeps a model on disk or in a container, and if whole."""
    from operations import models

    return models.download_path(model)
