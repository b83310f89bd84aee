"""Tools that let somebody else watch."""

from typing import Annotated

from pydantic import Field

from core.records import Answer
from operations.runtime import MOST_TTFT_SECONDS, TTFT_SECONDS, Runtime
from tools.surface import LOOKS, RT, Text, ops_tool


@ops_tool("diagnose", LOOKS)
async def get_alert_rules(
    target: Text = None,
    name: Text = None,
    selector: Text = None,
    ttft_seconds: Annotated[float, Field(gt=0, lt=MOST_TTFT_SECONDS)] = TTFT_SECONDS,
    rt: Runtime = RT,
) -> Answer:
    """Give Prometheus alert rules and a scrape configuration for vLLM's metrics.

    To page somebody when first tokens are late, the KV cache is full, requests wait or fail, or an
    engine is down.

    Args:
        selector: Label matchers of the series.
        ttft_seconds: The 95th percentile above which a first token is late.
    """
    from operations import alerts

    return await alerts.alert_rules(rt, target, name, selector=selector, ttft_seconds=ttft_seconds)
