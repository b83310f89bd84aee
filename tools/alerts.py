"""Tools that let somebody else watch."""

from typing import Annotated

from pydantic import Field

from operations import alerting
from operations.runtime import Runtime
from tools.surface import LOOKS, RT, Text, ops_tool


@ops_tool("diagnose", LOOKS)
async def get_alert_rules(
    target: Text = None,
    name: Text = None,
    selector: Text = None,
    ttft_seconds: Annotated[
        float, Field(gt=0, lt=alerting.MOST_TTFT_SECONDS)
    ] = alerting.TTFT_SECONDS,
    rt: Runtime = RT,
) -> alerting.AlertRules:
    """Give Prometheus alert rules and a scrape configuration for vLLM's metrics.

    Args:
        selector: Label matchers of the series.
        ttft_seconds: The 95th percentile above which a first token is late.
    """
    return await alerting.alert_rules(
        rt, target, name, selector=selector, ttft_seconds=ttft_seconds
    )
