"""A look at what will be measured."""

import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from pydantic import SecretStr

from benchmark.records import Workload
from benchmark.server import Seen, look
from benchmark.workload import FALLBACK_IDS, FALLBACK_TEMPLATE_TOKENS, bodies
from core.endpoint import Endpoint
from core.errors import BadReply, ModelNotServed
from core.records import Access
from tests.benchmark.driven import a_job
from tests.simulators.conftest import Simulate
from tests.simulators.conftest import simulate as simulate  # noqa: PLC0414  a fixture
from tests.simulators.conftest import tiny_model as tiny_model  # noqa: PLC0414  the same

pytestmark = pytest.mark.anyio

PAGE: Final = """
python_info{implementation="CPython"} 1.0
process_start_time_seconds 1.7e+09
process_resident_memory_bytes 1.1e+09
vllm:cache_config_info{block_size="16",kv_cache_size_tokens="4096"} 1.0
"""
MODELS: Final = {"data": [{"id": "base", "max_model_len": 2048}, {"id": "adapter"}]}


class Engine:
    """Answers by path; what it has no answer for is 404."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"models": MODELS, "version": {"version": "0.32.0"}, "metrics": PAGE}
        self.answers |= answers
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers.get(request.url.path.rsplit("/", 1)[-1])
        if callable(answer):
            answer = answer(json.loads(request.content))
        if answer is None:
            return httpx2.Response(404, json={"detail": "Not Found"})
        if isinstance(answer, str):
            return httpx2.Response(200, text=answer)
        return httpx2.Response(200, json=answer)

    async def look(self, model: str | None = None) -> Seen:
        access = Access(base_url="http://engine", api_key=SecretStr("k"), protection="")
        async with aclosing(Endpoint(access, transport=httpx2.MockTransport(self))) as endpoint:
            return await look(endpoint, model)


def tokenizer(
    split: Callable[[str], list[str]], *, template: int = 5, bos: bool = False
) -> Callable[[dict[str, Any]], Any]:
    """An engine's /tokenize whose ids are the order in which its tokens came up first."""
    known: dict[str, int] = {"<bos>": 0}

    def answer(asked: dict[str, Any]) -> Any:
        chat = "messages" in asked
        text = asked["messages"][0]["content"] if chat else asked["prompt"]
        texts = ["<bos>"] * bos + split(text)
        ids = [known.setdefault(text, len(known)) for text in texts]
        return {"tokens": ids + [1] * template * chat, "token_strs": texts}

    return answer


def by_word(text: str) -> list[str]:
    """As SentencePiece writes them; the first has no space before it."""
    first, *rest = text.split()
    return [first, *(f"\u2581{word}" for word in rest)]


async def test_an_engine_says_what_it_serves_and_how_it_is_sized(simulate: Simulate) -> None:
    """Asked with its key."""
    async with simulate("--api-key", "k") as engine:
        access = Access(base_url="http://engine", api_key=SecretStr("k"), protection="")
        transport = httpx2.ASGITransport(engine.app)
        async with aclosing(Endpoint(access, transport=transport)) as endpoint:
            seen = await look(endpoint, "tiny")
    subject = seen.subject
    assert (subject.model, subject.max_model_len) == ("tiny", 2048)
    assert subject.vllm_version == "0.32.0"
    assert subject.cache is not None
    assert (subject.cache.block_size, subject.cache.kv_cache_size_tokens) == (16, 4096)
    assert subject.process_start_time is not None


@pytest.mark.parametrize("api", ["completion", "chat"])
@pytest.mark.parametrize("context", [32, 200, 1500])
async def test_prompts_are_as_long_as_their_context_by_the_engines_own_count(
    simulate: Simulate, api: str, context: int
) -> None:
    """With a tokenizer that knows hardly a word, too."""
    async with simulate() as engine:
        access = Access(base_url="http://engine", protection="")
        transport = httpx2.ASGITransport(engine.app)
        async with aclosing(Endpoint(access, transport=transport)) as endpoint:
            seen = await look(endpoint, None)
            said: dict[str, Any] = {
                "token_ids": seen.token_ids,
                "words": seen.words,
                "context": context,
            }
            said |= seen.subject.model_dump(include={"model", "template_tokens"})
            work = Workload.model_validate({"api": api, "output_tokens": 1})
            asked = json.loads(bodies(a_job("", Path(), workload=work, **said))(7))
            path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
            reply = await endpoint.post(path, asked | {"stream": False, "stream_options": None})
    assert seen.notes == ()
    assert len(seen.token_ids) >= 64
    assert reply["usage"]["prompt_tokens"] == context


async def test_ordinary_words_become_the_alphabet_without_special_tokens() -> None:
    """Also where the tokenizer puts its mark before the text although it should not."""
    seen = await Engine(tokenize=tokenizer(by_word, bos=True)).look("base")
    assert len(seen.token_ids) == len(set(seen.token_ids)) > 64
    assert 0 not in seen.token_ids
    assert " time" in seen.words
    assert all(word.startswith(" ") for word in seen.words)
    assert (seen.subject.template_tokens, seen.notes) == (7, ())


async def test_a_tokenizer_of_letters_gives_chats_of_letters() -> None:
    """The words' own spaces would be tokens."""
    seen = await Engine(tokenize=tokenizer(list)).look("base")
    assert {len(word) for word in seen.words} == {1}
    assert (seen.subject.template_tokens, seen.notes) == (6, ())


async def test_chats_whose_words_are_no_tokens_say_how_far_off_they_are() -> None:
    """Half as long again: every second word falls apart in a chat."""

    def answer(asked: dict[str, Any]) -> Any:
        reply = plain(asked)
        half = reply["tokens"][: len(reply["tokens"]) // 2 * ("messages" in asked)]
        return reply | {"tokens": reply["tokens"] + half}

    plain = tokenizer(by_word, template=0)
    seen = await Engine(tokenize=answer).look()
    assert any("+50" in note or "+49" in note for note in seen.notes), seen.notes


@pytest.mark.parametrize(
    "tokenize",
    [None, "a page", {}, {"tokens": []}, {"tokens": ["x", None, -1, True]}, {"tokens": {"a": 1}}],
)
async def test_without_a_tokenizer_a_range_of_ids_is_taken_and_said(tokenize: Any) -> None:
    """Another server than vLLM, or one whose gateway hides it."""
    seen = await Engine(tokenize=tokenize).look()
    assert (seen.token_ids, seen.subject.template_tokens) == (
        FALLBACK_IDS,
        FALLBACK_TEMPLATE_TOKENS,
    )
    assert any("/tokenize" in note for note in seen.notes)


@pytest.mark.parametrize(
    ("ids", "note"), [(list(range(500, 700)), ""), ([5, 6, 7, 6], "3 kinds of tokens")]
)
async def test_a_tokenizer_without_texts_still_gives_ids(ids: list[int], note: str) -> None:
    """Older engines have no `return_token_strs`; of few kinds short prompts repeat sooner."""
    seen = await Engine(tokenize=lambda asked: {"tokens": ids}).look()
    assert seen.token_ids == tuple(dict.fromkeys(ids))
    assert not note or any(note in each for each in seen.notes)


async def test_a_tokenizer_that_takes_no_chats_leaves_their_length_an_estimate() -> None:
    """The completion API needs none."""

    def answer(asked: dict[str, Any]) -> Any:
        return plain(asked) if "prompt" in asked else None

    plain = tokenizer(by_word)
    seen = await Engine(tokenize=answer).look("base")
    assert len(seen.token_ids) > 64
    assert seen.subject.template_tokens == FALLBACK_TEMPLATE_TOKENS
    assert any("estimate" in note for note in seen.notes)


async def test_a_model_is_chosen_by_name_or_the_first_and_what_is_not_served_is_refused() -> None:
    """The key is shown with every request: vLLM leaves some of these open; a gateway may not."""
    engine = Engine(tokenize=tokenizer(by_word))
    seen = await engine.look("adapter")
    assert (seen.subject.model, seen.subject.max_model_len) == ("adapter", None)
    first = await engine.look()
    assert first.subject.model == "base"
    assert any("2 models" in note for note in first.notes)
    assert {request.headers["authorization"] for request in engine.requests} == {"Bearer k"}
    for models, name, words in ((MODELS, "other", "serves base, ad"), ({"data": []}, None, "no m")):
        with pytest.raises(ModelNotServed, match=words):
            await Engine(models=models).look(name)
    with pytest.raises(BadReply):
        await Engine(models="a page").look()


@pytest.mark.parametrize("answer", [None, "<html>", "a{b 1\n", {}])
async def test_what_an_engine_does_not_tell_is_not_known(answer: Any) -> None:
    """A server without version and metrics can be measured."""
    seen = await Engine(version=None if answer is None else "a page", metrics=answer).look()
    assert seen.subject.model_dump(
        exclude={"model", "max_model_len", "simulated", "template_tokens", "refuses"}
    ) == {
        "vllm_version": None,
        "cache": None,
        "process_start_time": None,
    }


@pytest.mark.parametrize(
    ("page", "simulated"),
    [
        (PAGE, False),
        (PAGE.replace("1.1e+09", "5.1e+07"), True),
        (PAGE.replace("1.1e+09", "5.1e+07").replace("python_info", "rust_info"), False),
        (PAGE.replace("1.1e+09", "5.1e+07").replace("vllm:", "other:"), False),
        (PAGE.replace("process_resident", "other"), False),
    ],
)
async def test_the_simulated_engine_is_told_by_its_size(page: str, *, simulated: bool) -> None:
    """No Python process that holds torch is so small."""
    assert (await Engine(metrics=page).look()).subject.simulated is simulated
