"""`/v1/completions`, whole and in pieces."""

import json

import pytest

from tests.simulators.conftest import Simulate

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
IDS = list(range(100, 140))


async def test_a_prompt_of_token_ids_has_its_exact_length(simulate: Simulate) -> None:
    """Usage counts the ids; the length is what was asked for."""
    async with simulate() as engine:
        reply = (await engine.post(PATH, prompt=IDS, max_tokens=5, ignore_eos=True)).json()
    used = {"prompt_tokens": 40, "completion_tokens": 5, "total_tokens": 45}
    assert used.items() <= reply["usage"].items()
    assert (reply["object"], reply["choices"][0]["finish_reason"]) == ("text_completion", "length")
    assert reply["id"].startswith("cmpl-")


async def test_several_prompts_and_choices_are_answered_in_order(simulate: Simulate) -> None:
    """Two prompts of two choices are four answers; usage counts each prompt once."""
    async with simulate() as engine:
        reply = (await engine.post(PATH, prompt=[IDS, IDS[:7]], n=2, max_tokens=3)).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["prompt_tokens"] == 47
    assert len({choice["text"] for choice in reply["choices"]}) == 4


async def test_the_same_request_is_answered_the_same(simulate: Simulate) -> None:
    """With another seed it is answered differently."""
    async with simulate() as engine:
        texts = [
            (await engine.post(PATH, prompt="hello", seed=seed, max_tokens=30)).json()["choices"]
            for seed in (1, 1, 2)
        ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


async def test_a_stop_string_ends_the_answer(simulate: Simulate) -> None:
    """The reason is `stop`, and the string is named but not said."""
    async with simulate(reply="one two three") as engine:
        reply = (await engine.post(PATH, prompt="hello", stop=" three", max_tokens=64)).json()
    choice = reply["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("one two", "stop")
    assert choice["stop_reason"] == " three"


async def test_a_stop_token_ends_the_answer(simulate: Simulate) -> None:
    """Its id is the reason."""
    async with simulate(reply="one two") as engine:
        ids = (await engine.post("/tokenize", prompt="w")).json()["tokens"]
        reply = (await engine.post(PATH, prompt="hello", stop_token_ids=ids, max_tokens=9)).json()
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["choices"][0]["stop_reason"] == ids[0]


async def test_min_tokens_keeps_the_answer_going(simulate: Simulate) -> None:
    """The short reply is drawn out before it may end."""
    async with simulate(reply="ok") as engine:
        short = (await engine.post(PATH, prompt="hello", max_tokens=40)).json()
        long = (await engine.post(PATH, prompt="hello", max_tokens=40, min_tokens=20)).json()
    assert short["usage"]["completion_tokens"] == 3
    assert 20 <= long["usage"]["completion_tokens"] <= 21


async def test_echo_says_the_prompt_first(simulate: Simulate) -> None:
    """With no tokens wanted it says nothing else, though one is counted, as vLLM does."""
    async with simulate(reply="ok") as engine:
        both = (await engine.post(PATH, prompt="hello ", echo=True, max_tokens=5)).json()
        only = (await engine.post(PATH, prompt="hello ", echo=True, max_tokens=0)).json()
    assert both["choices"][0]["text"] == "hello ok"
    assert only["choices"][0]["text"] == "hello "
    assert only["usage"]["completion_tokens"] == 1


async def test_logprobs_come_one_per_token(simulate: Simulate) -> None:
    """An echoed prompt has them too, but for its first token."""
    async with simulate() as engine:
        reply = (
            await engine.post(PATH, prompt=IDS[:3], logprobs=2, echo=True, max_tokens=2)
        ).json()
    logprobs = reply["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == 5
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)


async def test_token_ids_are_returned_on_request(simulate: Simulate) -> None:
    """Those of the prompt and those that were made."""
    async with simulate() as engine:
        reply = (await engine.post(PATH, prompt=IDS, max_tokens=4, return_token_ids=True)).json()
    assert reply["choices"][0]["prompt_token_ids"] == IDS
    assert len(reply["choices"][0]["token_ids"]) == 4


async def test_a_stream_says_what_the_whole_answer_says(simulate: Simulate) -> None:
    """Piece by piece, the reason in the last one, then DONE."""
    body = {"prompt": IDS, "max_tokens": 20, "ignore_eos": True}
    async with simulate() as engine:
        whole = (await engine.post(PATH, **body)).json()
        *chunks, last = await engine.events(PATH, **body)
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    assert last == "[DONE]"


async def test_usage_comes_last_and_with_every_chunk_if_asked_for(simulate: Simulate) -> None:
    """The last chunk has no choice; the numbers grow up to it."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with simulate() as engine:
        *chunks, _ = await engine.events(
            PATH, prompt=IDS, max_tokens=6, ignore_eos=True, stream_options=options
        )
    parsed = [json.loads(chunk) for chunk in chunks]
    made = [chunk["usage"]["completion_tokens"] for chunk in parsed]
    assert made == sorted(made)
    assert (made[-1], parsed[-1]["choices"]) == (6, [])


async def test_a_streamed_echo_begins_with_the_prompt(simulate: Simulate) -> None:
    """Its first chunk carries the prompt's ids."""
    async with simulate(reply="ok") as engine:
        first, *_ = await engine.events(PATH, prompt="hello", echo=True, max_tokens=5)
        only, *_ = await engine.events(PATH, prompt="hello", echo=True, max_tokens=0, logprobs=1)
    choice = json.loads(first)["choices"][0]
    assert choice["text"].startswith("hello")
    assert choice["prompt_token_ids"]
    assert json.loads(only)["choices"][0]["text"] == "hello"


async def test_a_streamed_request_for_ids_gets_them(simulate: Simulate) -> None:
    """The prompt's in the first chunk only."""
    async with simulate() as engine:
        *chunks, _ = await engine.events(PATH, prompt=IDS, max_tokens=8, return_token_ids=True)
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert choices[0]["prompt_token_ids"] == IDS
    assert sum(len(choice["token_ids"]) for choice in choices) <= 8


async def test_cached_tokens_are_told_where_the_flag_says_so(simulate: Simulate) -> None:
    """The second time, all full blocks but the last token's are known."""
    options = {"include_usage": True}
    async with simulate("--enable-prompt-tokens-details") as engine:
        await engine.post(PATH, prompt=IDS, max_tokens=1)
        reply = (await engine.post(PATH, prompt=IDS, max_tokens=1)).json()
        *_, usage, _ = await engine.events(PATH, prompt=IDS, max_tokens=1, stream_options=options)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
    assert json.loads(usage)["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}
