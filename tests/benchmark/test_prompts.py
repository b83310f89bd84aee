"""Made prompts: exact, unlike each other, the same again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.records import Workload
from benchmark.workload import HEAD_TOKENS, bodies
from core.errors import InvalidArgument
from tests.benchmark.driven import a_job

IDS = tuple(range(7, 250_000, 3001))
WORDS = tuple(f" {first}{second}" for first in "abcdefghij" for second in 'klmnopqr"é')


def made(context: int, *, ids: tuple[int, ...] = IDS, **workload: Any) -> Callable[[int], bytes]:
    made: dict[str, Any] = {"context": context, "model": "m", "token_ids": ids, "words": WORDS}
    job = a_job("", Path(), workload=Workload(**workload), template_tokens=9, **made)
    return bodies(job)


def prompt(body: bytes) -> list[int]:
    tokens: list[int] = json.loads(body)["prompt"]
    return tokens


def words(body: bytes) -> list[str]:
    said: str = json.loads(body)["messages"][0]["content"]
    return said.split(" ")


@given(
    context=st.integers(1, 600),
    number=st.integers(0, 2**40),
    seed=st.integers(-(2**70), 2**70),
    share=st.floats(0, 1),
    size=st.integers(2, 80),
)
def test_a_prompt_has_exactly_its_context_of_tokens_of_the_alphabet(
    context: int, number: int, seed: int, share: float, size: int
) -> None:
    """Whatever the seed, the request's number and the shared part."""
    ids = IDS[:size]
    tokens = prompt(made(context, ids=ids, seed=seed, prefix_share=share)(number))
    assert len(tokens) == context
    assert set(tokens) <= set(ids)


@pytest.mark.parametrize("context", [6, 8, 16, 17, 300])
@pytest.mark.parametrize("api", ["completion", "chat"])
def test_no_two_requests_have_the_same_prompt(context: int, api: str) -> None:
    """Also eight tokens are enough for all requests of a cell."""
    ask = made(context + 9 * (api == "chat"), api=api)
    assert len({ask(number) for number in range(5000)}) == 5000


@given(first=st.integers(0, 2**30), other=st.integers(0, 2**30))
def test_far_requests_differ_in_their_first_block(first: int, other: int) -> None:
    """The counter comes first, so no later block is found in the cache."""
    ask = made(500)
    heads = [prompt(ask(number))[:HEAD_TOKENS] for number in (first, other)]
    assert (heads[0] == heads[1]) == (first == other)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_prompts_too_short_to_be_unique_come_all_before_one_repeats(context: int) -> None:
    """Nine kinds of tokens make nine prompts of one, 81 of two."""
    for seed in range(6):  # of which some begin with a step that does not come past all
        ids, many = IDS[:9], 9**context
        ask = made(context, ids=ids, seed=seed)
        assert len({ask(number) for number in range(many)}) == many
        assert ask(many) == ask(0)


@given(share=st.floats(0, 1), context=st.integers(1, 200))
def test_the_shared_part_is_shared_and_the_next_token_on_is_not(share: float, context: int) -> None:
    """Rounded down to whole tokens."""
    ask = made(context, prefix_share=share)
    prompts = [prompt(ask(number)) for number in range(100)]
    common = int(share * context + 1e-9)
    assert len({tuple(tokens[:common]) for tokens in prompts}) == 1
    rest = {tuple(tokens[common : common + HEAD_TOKENS]) for tokens in prompts}
    assert len(rest) == min(100, len(IDS) ** (context - common))


@pytest.mark.parametrize("api", ["completion", "chat"])
def test_a_seed_gives_the_same_bodies_in_any_order(api: str) -> None:
    """Workers ask for numbers of their own, and a resumed cell for later ones."""
    numbers = [5000, 3, 1024, 4, 5000, 9000, 3]
    same = made(40, api=api, prefix_share=1.0, output_tokens=1)  # as the articles' method has it
    assert len({same(number) for number in numbers}) == 1
    one, other = made(50, api=api, seed=3), made(50, api=api, seed=3)
    ahead = {number: one(number) for number in sorted(numbers)}
    assert [other(number) for number in numbers] == [ahead[number] for number in numbers]


def test_another_seed_or_context_gives_other_prompts() -> None:
    """So a cell does not warm the cache for the next one."""
    asked = [made(40, seed=1), made(40, seed=2), made(41, seed=1)]
    heads = {tuple(prompt(ask(number))[:HEAD_TOKENS]) for ask in asked for number in range(2000)}
    assert len(heads) == 6000


def test_a_fixed_output_is_asked_for_in_every_way_and_a_natural_one_only_bounded() -> None:
    """And the answer is streamed, with its usage at the end."""
    body = json.loads(made(8, output_tokens=5)(1))
    del body["prompt"]
    natural = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
    }
    assert body == natural | {"min_tokens": 5, "ignore_eos": True, "temperature": 0}
    body = json.loads(made(8, output_tokens=5, fixed_output=False)(1))
    del body["prompt"]
    assert body == natural


def test_a_chat_has_the_words_that_its_template_leaves_room_for() -> None:
    """The first word is the template's, because templates trim what stands before it."""
    body = made(100, api="chat")(1)
    said = words(body)
    assert len(said) == 100 - 9 + 1
    assert {f" {word}" for word in said} <= set(WORDS)
    assert json.loads(body)["stream_options"]["continuous_usage_stats"] is True


def test_chats_share_their_prefix_too_and_are_no_shorter_than_their_template() -> None:
    """By words; those after it differ. A refusal says how long the template is."""
    ask = made(109, api="chat", prefix_share=0.5)
    talks = [words(ask(number)) for number in range(50)]
    assert len({tuple(talk[:51]) for talk in talks}) == 1
    assert len({tuple(talk[51:55]) for talk in talks}) == 50
    with pytest.raises(InvalidArgument, match="takes 9"):
        made(9, api="chat")


@pytest.mark.parametrize("api", ["completion", "chat"])
def test_an_alphabet_of_one_letter_is_refused(api: str) -> None:
    """Every prompt would be the same."""
    asked = Workload.model_validate({"api": api})
    job = a_job("", Path(), workload=asked, context=30, token_ids=(5,), words=(" a",))
    with pytest.raises(InvalidArgument, match="1 kinds"):
        bodies(job)
