"""This project's client as a program: python -m tests.our_client URL C TOKENS SECONDS FILE."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import anyio
import numpy as np

from benchmark.client import Fleet
from benchmark.loads import Job
from benchmark.records import Measured, Slice, StopRule, Workload
from tests.truth.serving import MODEL

ALPHABET: Final = tuple(range(1000, 1256))
WORDS: Final = tuple(f" w{number}" for number in range(1000, 1256))
CONTEXT: Final = 8


def a_job(
    base_url: str,
    concurrency: int,
    folder: Path,
    *,
    output_tokens: int = 64,
    seconds: float = 2,
    api: Literal["completion", "chat"] = "completion",
) -> Job:
    """One closed loop of fixed length, without warm-up worth the name."""
    return Job(
        cell=f"{CONTEXT}x{concurrency}",
        base_url=base_url,
        path="/v1/completions" if api == "completion" else "/v1/chat/completions",
        concurrency=concurrency,
        context=CONTEXT,
        **Workload(api=api, output_tokens=output_tokens).model_dump(),
        model=MODEL,
        token_ids=ALPHABET,
        words=WORDS,
        min_requests=StopRule().min_requests,
        max_seconds=seconds,
        warmup_max_seconds=0.5,
        request_timeout_seconds=StopRule().request_timeout_seconds,
        ramp_seconds=0.3,
        samples_file=str(folder),
    )


async def measured(job: Job, log_file: Path) -> Measured:
    """Measure it with one worker, until its time is over."""

    def never(_slices: Sequence[Slice]) -> bool:
        return False

    def silent(_doing: str) -> None:
        pass

    async with Fleet(1, log_file) as fleet:
        return await fleet.measure(job, enough=never, tell=silent, stop=lambda: False)


async def main(words: Sequence[str]) -> None:
    """Measure, and write when each request was sent and what its TTFT was said to be."""
    base_url, concurrency, tokens, seconds, file = words
    result = Path(file)
    folder = result.parent
    job = a_job(
        base_url, int(concurrency), folder, output_tokens=int(tokens), seconds=float(seconds)
    )
    samples = (await measured(job, folder / "client.log")).samples
    np.savez(result, sent=samples.sent, ttft=samples.first_token - samples.intended)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1:])
