"""The tool that explains a deployment: what its flags do, what they trade, what would be better."""

from core.records import Answer
from operations.runtime import Runtime
from tools.surface import LOOKS, RT, Text, Words, ops_tool


@ops_tool("observe", LOOKS, default=True)
async def explain_deployment(
    target: Text = None,
    name: Text = None,
    other: Text = None,
    flags: Words = None,
    rt: Runtime = RT,
) -> Answer:
    """Explain a deployment: each flag in numbers, trade-offs, best practices, what changes do.

    Is the startup timeout of the health check long enough to load the model?

    Args:
        other: A deployment to compare with.
        flags: Changes to judge, such as --max-model-len=8192.
    """
    from operations.explain import explain

    return await explain(rt, target, name, other=other, flags=flags)
