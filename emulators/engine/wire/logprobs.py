"""Invented log-probabilities in the two shapes of OpenAI's interface."""

from collections.abc import Sequence
from typing import Any

from emulators.engine.speech import likelihoods
from emulators.engine.tokens import decode
from emulators.engine.wire.jobs import Job
from emulators.engine.wire.requests import ChatRequest, CompletionRequest


def completion_logprobs(
    job: Job[CompletionRequest], tokens: Sequence[int], *, echoed: int = 0
) -> dict[str, Any] | None:
    """Those of `/v1/completions`; the very first token of a prompt has none."""
    count = job.request.logprobs
    if count is None:
        return None
    tokenizer = job.served.engine.tokenizer
    texts = [decode(tokenizer, [token]) for token in tokens]
    tops: list[dict[str, float] | None] = []
    for position, token in enumerate(tokens):
        pairs = likelihoods(token, count, tokenizer.vocab_size)
        tops.append({decode(tokenizer, [other]): value for other, value in pairs})
        if echoed and position == 0:
            tops[0] = None
    offsets = [sum(map(len, texts[:position])) for position in range(len(texts))]
    return {
        "text_offset": offsets,
        "token_logprobs": [None if top is None else -0.1 for top in tops],
        "tokens": texts,
        "top_logprobs": tops,
    }


def chat_logprobs(job: Job[ChatRequest], tokens: Sequence[int]) -> dict[str, Any] | None:
    """Those of `/v1/chat/completions`."""
    if not job.request.logprobs:
        return None
    shown = job.request.top_logprobs or 0
    content = []
    for token in tokens:
        pairs = likelihoods(token, shown, job.served.engine.tokenizer.vocab_size)
        top = [_entry(job, other, value) for other, value in pairs[:shown]]
        content.append({**_entry(job, *pairs[0]), "top_logprobs": top})
    return {"content": content}


def _entry(job: Job[ChatRequest], token: int, logprob: float) -> dict[str, Any]:
    piece = job.served.engine.tokenizer.bytes_of(token)
    return {
        "token": piece.decode(errors="replace"),
        "logprob": logprob,
        "bytes": list(piece),
    }
