"""The served model asked: answers timed token by token, and probes of what clients rely on."""

import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, Literal

import anyio

from backends.endpoint import NAME as ENDPOINT
from core.endpoint import Endpoint, not_running
from core.errors import (
    BadReply,
    BrokenStream,
    EndpointError,
    InvalidArgument,
    ModelNotServed,
    NextStep,
    NotReady,
    RequestRefused,
    Throttled,
    TimedOut,
    Unauthorized,
    Unreachable,
)
from core.records import Answer, Record, State, listed
from core.redaction import NotJson, in_quotes, one_line, read_json
from operations.resolve import Found, asleep
from operations.runtime import Runtime

ANSWER_SECONDS: Final = 40.0
"""A call ends before a client cuts it; what has come by then is given."""
MAX_ANSWER_CHARACTERS: Final = 20_000
_LAST_SECONDS: Final = 2.0
"""Of a call, to say what came."""
_MOST_PIECES: Final = 100_000
"""Of an answer; the fastest engine makes 80,000 tokens in that time."""
_MOST_TOKENS: Final = 10**9
_QUOTED: Final = 160
_NAMED: Final = 64
"""Characters of a function's name, as OpenAI's API has them."""
"""Characters of an answer in the first line."""
_ONLY_THOUGHTS: Final = (
    "max_tokens was spent on thoughts, which the engine keeps apart in `reasoning`: give more"
    " max_tokens, or leave thinking off."
)
_SILENCE_SECONDS: Final = 38.0
_SAYS_MORE: Final[dict[str, type[EndpointError]]] = {
    kind.code: kind
    for kind in (Unreachable, Unauthorized, BadReply, BrokenStream, RequestRefused, Throttled)
}

Clock = Callable[[], float]
Tell = Callable[[str], Awaitable[None]]
_EVERY_SECONDS: Final = 5.0
"""Of an answer that goes on, between two words of how long it has."""


class Timing(Record):
    """Of one streamed answer, on this client's clock from the moment it was sent, in seconds."""

    ttft_seconds: float | None = None
    """To the first token of content or of a call: not a role, not an empty chunk."""
    ttft_reasoning_seconds: float | None = None
    """To the first token of reasoning, where the model reasons aloud."""
    tpot_seconds: float | None = None
    """Between output tokens after the first, on average."""
    itl_p50_seconds: float | None = None
    """Between chunks that carried text: the median; a measured value."""
    itl_p99_seconds: float | None = None
    e2el_seconds: float
    """To the end of the answer."""
    output_tokens_per_second: float | None = None
    """Of this one request: no measure of what the deployment can serve."""


class ToolCall(Record):
    """A function that the model wants called."""

    name: str
    arguments: str
    """On one line: JSON, or the model's own words where it wrote none."""

    def __str__(self) -> str:
        return f"{in_quotes(self.name)} with {in_quotes(self.arguments, _QUOTED) or 'nothing'}"


class ModelAnswer(Answer):
    """What the model said."""

    target: str
    name: str
    model: str
    answer: str
    reasoning: str | None = None
    """Apart from the answer, where the engine parses it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of functions that `extra` offered; nobody calls them here."""
    finish_reason: str | None = None
    """stop, length, or deadline when our own time was over."""
    truncated: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """Of answer and reasoning together, as the engine counts."""
    cached_prompt_tokens: int | None = None
    timing: Timing | None = None

    def summary(self) -> str:
        tokens = "?" if self.completion_tokens is None else self.completion_tokens
        head = f"{self.model} answered with {tokens} tokens ({self.finish_reason})"
        timing = self.timing
        if self.tool_calls:
            return f"{head}: it calls {listed([str(call) for call in self.tool_calls])}."
        if self.reasoning and not self.answer:
            return f"{head}, all of them thoughts: there is no answer yet."
        if timing is None or timing.ttft_seconds is None:
            return f"{head}: {in_quotes(self.answer, _QUOTED) or 'no text'}."
        ttft = f"{timing.ttft_seconds * 1000:.0f} ms"
        speed = timing.tpot_seconds and f", then {1 / timing.tpot_seconds:.3g} tokens/s"
        said = f"{head}: first token after {ttft}{speed or ''}"
        return f"{said}, all after {timing.e2el_seconds:.2f} s."

    def facts(self) -> Mapping[str, Any]:
        kept = {"target", "name", "answer", "reasoning", "tool_calls", "prompt_tokens"}
        return self.model_dump(
            include=kept | {"completion_tokens", "cached_prompt_tokens", "timing"}
        )

    def warnings(self) -> tuple[str, ...]:
        if self.finish_reason == "deadline":
            return ("The answer was cut off where a call must end; ask for fewer tokens.",)
        if self.finish_reason == "length":
            if self.reasoning and not (self.answer or self.tool_calls):
                return (_ONLY_THOUGHTS,)
            return ("The answer ends at max_tokens.",)
        if self.truncated:
            return (f"Only the last {MAX_ANSWER_CHARACTERS} characters are shown.",)
        return ()

    def next_steps(self) -> tuple[NextStep, ...]:
        here = {"target": self.target, "name": self.name}
        end = () if self.target == ENDPOINT else (NextStep("destroy_vllm", here),)
        return (NextStep("get_metrics", here), *end)


class Question(Record):
    """One request, in OpenAI's terms."""

    model: str | None = None
    """Of several that are served; None: the deployment's own."""
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    system: str | None = None
    mode: Literal["chat", "completion"] = "chat"
    max_tokens: int = 512
    temperature: float | None = None
    extra: Mapping[str, Any] = {}
    """Any other fields of the request body."""

    def body(self, model: str) -> dict[str, Any]:
        """Give the body to send."""
        body: dict[str, Any] = {
            **self.extra,
            "model": model,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.mode == "completion":
            return {**body, "prompt": self.prompt or ""}
        return {**body, "messages": self.asked()}

    def require_content(self) -> None:
        """Refuse a question without words: nothing is woken or paid for it.

        Raises:
            InvalidArgument: There is neither a prompt nor a message.
        """
        if not self.prompt and not (self.mode == "chat" and self.messages):
            raise InvalidArgument("There is nothing to ask.", fix="Give `prompt` or `messages`.")

    def asked(self) -> list[Mapping[str, Any]]:
        """Give the whole conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = [{"role": "user", "content": self.prompt}] if self.prompt is not None else []
        return [*system, *self.messages, *asked]


class _Heard:
    """What a stream has brought so far, with the time of each piece."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent = clock()
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self._called: dict[int, tuple[list[str], list[str]]] = {}
        """Names and arguments of calls, in pieces, by the place of the call."""
        self._content_at: list[float] = []
        self._reasoning_at: list[float] = []
        self.finish_reason: str | None = None
        self.chunks = 0
        self.usage: Mapping[str, Any] = {}

    def take(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk in."""
        at = self._clock() - self._sent
        self.chunks += 1
        self.usage = _object(chunk.get("usage")) or self.usage
        choices = chunk.get("choices")
        for choice in map(_object, choices if isinstance(choices, list) else ()):
            delta = _object(choice.get("delta"))
            self._keep(
                self.content, self._content_at, delta.get("content") or choice.get("text"), at
            )
            thought = delta.get("reasoning") or delta.get("reasoning_content")
            self._keep(self.reasoning, self._reasoning_at, thought, at)
            calls = delta.get("tool_calls")
            for call in map(_object, calls if isinstance(calls, list) else ()):
                self._take_call(call, at)
            ended = choice.get("finish_reason")  # one word of the engine's
            if isinstance(ended, str) and re.fullmatch(r"\w{1,40}", ended):
                self.finish_reason = ended
            if len(self._content_at) + len(self._reasoning_at) > _MOST_PIECES:
                raise BrokenStream(
                    "The answer has no end.",
                    fix="Ask for fewer tokens; call verify_model_health for what it answers.",
                    cause=f"More than {_MOST_PIECES} pieces of text came.",
                )

    def _take_call(self, call: Mapping[str, Any], at: float) -> None:
        place, said = call.get("index"), _object(call.get("function"))
        names, arguments = self._called.setdefault(place if type(place) is int else 0, ([], []))
        written = said.get("arguments")
        self._keep(names, [] if written else self._content_at, said.get("name"), at)
        self._keep(arguments, self._content_at, written, at)

    @property
    def came(self) -> bool:
        """Whether any word, thought or call came."""
        return bool(self._content_at or self._reasoning_at)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(name=one_line("".join(names), _NAMED), arguments=_as_json("".join(arguments)))
            for _, (names, arguments) in sorted(self._called.items())
        )

    def timing(self) -> Timing:
        """Give the arithmetic of it."""
        end = self._clock() - self._sent
        stamps = sorted(self._content_at + self._reasoning_at)
        tokens = _count(self.usage, "completion_tokens")
        gaps = sorted(late - early for early, late in pairwise(stamps))
        decode = stamps[-1] - stamps[0] if stamps else 0.0
        return Timing(
            ttft_seconds=round(self._content_at[0], 6) if self._content_at else None,
            ttft_reasoning_seconds=round(self._reasoning_at[0], 6) if self._reasoning_at else None,
            tpot_seconds=round(decode / (tokens - 1), 6)
            if tokens and tokens > 1 and decode
            else None,
            itl_p50_seconds=percentile(gaps, 50),
            itl_p99_seconds=percentile(gaps, 99),
            e2el_seconds=round(end, 6),
            output_tokens_per_second=round(tokens / end, 2) if tokens and end else None,
        )

    @staticmethod
    def _keep(texts: list[str], stamps: list[float], text: object, at: float) -> None:
        if isinstance(text, str) and text:
            texts.append(text)
            stamps.append(at)


async def ask(
    runtime: Runtime,
    found: Found,
    question: Question,
    *,
    timed: bool,
    heard: Tell,
    clock: Clock = time.perf_counter,
) -> ModelAnswer:
    """Ask, and give what has come within `ANSWER_SECONDS`.

    Raises:
        NotReady: The deployment does not serve now.
        EndpointError: The engine refused, broke off or sent nonsense.
    """
    require_ready(found)
    async with runtime.endpoint(found.backend, found.name) as endpoint:
        named = question.model or found.deployment.served_model_name
        model = await endpoint.model_meant(named)
        gathered = _Heard(clock)
        here = {"target": found.deployment.target, "name": found.name}
        try:
            await _listen(endpoint, question, model, gathered, heard, here)
        except ModelNotServed as exc:
            with suppress(EndpointError):
                names = [in_quotes(row.id, _NAMED) for row in (await endpoint.models())[:5]]
                exc.fix = f"Give as `model` of query_vllm what it serves, such as {listed(names)}."
            raise
    return _answer(found, model, gathered, timed=timed)


def require_ready(found: Found) -> None:
    """Return only if the deployment answers.

    Raises:
        NotReady: It may answer later.
        Stopped, Expired, DeploymentFailed: It will not, however long one waits.
        Asleep: It is woken only by who says so.
        EndpointError: It did not answer when it was looked at.
    """
    deployment = found.deployment
    if deployment.state is State.READY:
        return
    if deployment.state is State.ASLEEP:
        raise asleep(deployment)
    if error := not_running(deployment):
        raise error
    here = {"target": deployment.target, "name": deployment.name}
    failure = deployment.failure
    if failure and deployment.state is State.UNKNOWN and failure.code in _SAYS_MORE:
        raise _SAYS_MORE[failure.code](
            failure.cause, fix=failure.fix, next_steps=(NextStep("verify_model_health", here),)
        )
    raise NotReady(
        deployment.summary(),
        fix="Wait for it with status_vllm, or call diagnose for what keeps it.",
        next_steps=(NextStep("status_vllm", {**here, "wait_s": 30}), NextStep("diagnose", here)),
    )


async def _listen(
    endpoint: Endpoint,
    question: Question,
    model: str,
    gathered: _Heard,
    heard: Tell,
    here: Mapping[str, str],
) -> None:
    path = "/v1/chat/completions" if question.mode == "chat" else "/v1/completions"
    left = anyio.current_effective_deadline() - anyio.current_time() - _LAST_SECONDS
    seconds, began = max(1.0, min(ANSWER_SECONDS, left)), anyio.current_time()
    with anyio.move_on_after(seconds) as limit:
        try:
            async with endpoint.stream(
                path, question.body(model), timeout=_SILENCE_SECONDS
            ) as events:
                async for chunk in events:
                    gathered.take(chunk)
                    periods = (anyio.current_time() - began) // _EVERY_SECONDS
                    if periods:
                        every = periods * _EVERY_SECONDS
                        await heard(f"The model has been answering for {every:.0f} s.")
        except EndpointError as exc:
            if said := "".join(gathered.content):
                exc.data["answer_so_far"] = said[-MAX_ANSWER_CHARACTERS:]
            raise
    if limit.cancelled_caught:
        if not gathered.came:
            raise TimedOut(
                f"{model} answered nothing within {seconds:.0f} s.",
                fix="Call verify_model_health for whether it answers at all, then ask again.",
                cause=f"{gathered.chunks} events came, none of them with text.",
                next_steps=(NextStep("verify_model_health", here),),
            )
        gathered.finish_reason = "deadline"
    elif not gathered.came and gathered.finish_reason is None:
        raise BrokenStream(
            f"{model} ended its answer without a word of it.",
            fix="Call verify_model_health for whether it answers at all, then ask again.",
            cause=f"{gathered.chunks} events came, none with text or a reason why it ended.",
            next_steps=(NextStep("verify_model_health", here),),
        )


def _answer(found: Found, model: str, gathered: _Heard, *, timed: bool) -> ModelAnswer:
    text = "".join(gathered.content)
    details = _object(gathered.usage.get("prompt_tokens_details"))
    return ModelAnswer(
        target=found.deployment.target,
        name=found.name,
        model=model,
        answer=text[-MAX_ANSWER_CHARACTERS:],
        reasoning="".join(gathered.reasoning)[-MAX_ANSWER_CHARACTERS:] or None,
        tool_calls=gathered.calls,
        finish_reason=gathered.finish_reason,
        truncated=len(text) > MAX_ANSWER_CHARACTERS,
        prompt_tokens=_count(gathered.usage, "prompt_tokens"),
        completion_tokens=_count(gathered.usage, "completion_tokens"),
        cached_prompt_tokens=_count(details, "cached_tokens"),
        timing=gathered.timing() if timed else None,
    )


def _object(value: object) -> Mapping[str, Any]:
    """Return what is an object, and an empty one for what should be and is not."""
    return value if isinstance(value, dict) else {}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else None


def _as_json(arguments: str) -> str:
    """Write a call's arguments on one line, without a change of what they hold if they are JSON."""
    try:
        line = json.dumps(read_json(arguments.encode()), ensure_ascii=False)
    except (NotJson, UnicodeEncodeError):
        return one_line(arguments, MAX_ANSWER_CHARACTERS)
    return line[:MAX_ANSWER_CHARACTERS]


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Give the smallest measured value that so many per cent do not exceed (nearest rank).

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.0
    """
    if not ordered:
        return None
    rank = -(-len(ordered) * percent // 100)
    return round(ordered[max(0, int(rank) - 1)], 6)


_OURS: Final = frozenset(
    {"model", "prompt", "messages", "max_tokens", "stream", "stream_options", "n"}
)
"""Of `n` answers that come at once, the words would stand among one another."""


def parse_extra(text: str | None) -> Mapping[str, Any]:
    """Read more fields of a request from JSON text."""
    if not text:
        return {}
    try:
        extra = json.loads(text)
    except ValueError as exc:
        raise InvalidArgument(
            "`extra` is not JSON.", fix='Give an object such as {"top_p": 0.9}.', cause=str(exc)
        ) from exc
    if not isinstance(extra, dict):
        raise InvalidArgument("`extra` is no object.", fix='Give one such as {"top_p": 0.9}.')
    if taken := sorted(extra.keys() & _OURS):
        raise InvalidArgument(
            f"`extra` cannot set {', '.join(taken)}: this call sets that itself.",
            fix="Leave it out; model, prompt, messages and max_tokens are arguments.",
        )
    return extra


_PROBE_SECONDS: Final = 20.0
"""Of each question that shows an ability; all are asked at once."""
_EXCERPT: Final = 120
_WORDS: Final = ("amber-42", "violet-17")
"""What nobody answers to a greeting unless the schema makes them."""
_MARKS: Final = ("<|channel>", "<channel|>")
"""Of Gemma 4's thoughts; without a parser they are left out, and the word before them stays."""
Outcome = Literal["pass", "fail", "not tested"]
_Judged = tuple[Outcome, str]


class Probe(Record):
    """One ability that clients rely on, and what was seen of it."""

    what: str
    outcome: Outcome
    detail: str
    """The evidence, or why it was not tested."""


async def probe(endpoint: Endpoint, model: str, *, made_up: str) -> tuple[Probe, ...]:
    """Ask all at once; `made_up` says why this model's words mean nothing, if they do not."""
    left = anyio.current_effective_deadline() - anyio.current_time() - _LAST_SECONDS
    limit = max(1.0, min(_PROBE_SECONDS, left))
    found: dict[str, Probe] = {}

    async def see(what: str, body: Mapping[str, Any], judge: Judge) -> None:
        asked = {"model": model, "temperature": 0, **body}
        try:
            with anyio.fail_after(limit):
                reply = await endpoint.post("/v1/chat/completions", asked, timeout=limit)
            outcome, detail = judge(reply, made_up)
        except (TimeoutError, Unreachable):
            outcome, detail = "not tested", f"No answer within {limit:.0f} s."
        except RequestRefused as exc:
            outcome, detail = _refused(what, exc.cause)
        except EndpointError as exc:
            outcome, detail = "fail", f"{exc.summary} {exc.cause}".strip()
        found[what] = Probe(what=what, outcome=outcome, detail=detail)

    async with anyio.create_task_group() as asking:
        for what, (body, judge) in _QUESTIONS.items():
            asking.start_soon(see, what, body, judge)
    return tuple(found[what] for what in _QUESTIONS)


def _refused(what: str, words: str) -> _Judged:
    """Tell what an engine was started without from what it should have taken."""
    if "--tool-call-parser" in words:
        return (
            "not tested",
            "The engine has no tool-call parser: deploy it with --tool-call-parser.",
        )
    if what == "image" and ("multimodal" in words or "at most 0" in words.lower()):
        return "not tested", f"The engine takes no images: {words}"
    return "fail", f"The engine refuses it: {words}"


def _tools(reply: Mapping[str, Any], made_up: str) -> _Judged:
    message = message_of(reply)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        said = _object(_object(calls[0]).get("function"))
        given = _object(_from_json(str(said.get("arguments"))))
        right = said.get("name") == "get_weather" and isinstance(given.get("city"), str)
        shown = f"{_excerpt(said.get('name'))}({_excerpt(said.get('arguments'))})"
        return ("pass", shown) if right else ("fail", f"A call amiss: {shown}")
    text = _text(message, "content")
    if "get_weather" in text:
        return "fail", f"The call stays in `content`: {_excerpt(text)}"
    if made_up:
        return "not tested", f"The engine took the tool, but {made_up}."
    return "fail", f"No call; it said {_excerpt(text)}"


def _schema(reply: Mapping[str, Any], _made_up: str) -> _Judged:
    """Judge the form alone: the grammar makes any model say one of the two words."""
    text = _text(message_of(reply), "content")
    if _from_json(text) in _WORDS:
        return "pass", f"{_excerpt(text)}, as the schema wants."
    return "fail", f"The schema was not enforced: {_excerpt(text)}"


def _reasoning(reply: Mapping[str, Any], made_up: str) -> _Judged:
    message = message_of(reply)
    text = _text(message, "content")
    thoughts = _text(message, "reasoning") or _text(message, "reasoning_content")
    if text.startswith("thought\n") or any(mark in text for mark in _MARKS):
        return "fail", f"Thoughts are in `content`: {_excerpt(text)}"
    if thoughts:
        return "pass", f"Thoughts apart from the answer: {_excerpt(thoughts)}"
    if not _object(reply.get("usage")).get("completion_tokens_details"):
        why = "No thoughts came and the engine counts none: it seems to have no reasoning parser."
        return "not tested", why
    why = f"no thoughts came; {made_up}" if made_up else "the model gave no thoughts"
    return "not tested", f"The engine took it, but {why}."


def _image(reply: Mapping[str, Any], made_up: str) -> _Judged:
    text = _text(message_of(reply), "content")
    if made_up:
        return "not tested", f"The engine took the image, but {made_up}."
    seen = "red" in text.lower()
    return "pass" if seen else "fail", f"A red image is called {_excerpt(text)}"


def message_of(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a reply's first choice says, and an empty one where there is none."""
    return _object(first_choice(reply).get("message"))


def first_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a reply's first choice, and an empty one where there is none."""
    choices = reply.get("choices")
    return _object(choices[0] if isinstance(choices, list) and choices else None)


def _text(message: Mapping[str, Any], field: str) -> str:
    found = message.get(field)
    return found if isinstance(found, str) else ""


def _from_json(text: str) -> object:
    try:
        return read_json(text.encode(errors="replace"))
    except NotJson:
        return None


def _excerpt(text: object) -> str:
    return in_quotes(text, _EXCERPT) or "nothing"


def _user(content: object, *, max_tokens: int, **more: Any) -> Mapping[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, **more}


Judge = Callable[[Mapping[str, Any], str], _Judged]
"""Judges an answer; the second is why its words mean nothing, if they do not."""
_CITY: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_WEATHER: Final = {
    "name": "get_weather",
    "description": "Get the weather of a city now.",
    "parameters": _CITY,
}
_WITH_TOOL: Final = _user(
    "Use the tool: what is the weather in Paris now?",
    max_tokens=96,
    tools=[{"type": "function", "function": _WEATHER}],
)
_FORM: Final = {"name": "word", "schema": {"type": "string", "enum": list(_WORDS)}}
_RED: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAS0lEQVR42u3PQQkAAAgAsetfWiP4FgYrsKZe"
    "S0BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEDgsqnc8OJg6Ln3AAAAAElF"
    "TkSuQmCC"
)
"""A red square of 64 pixels."""
_PICTURE: Final = (
    {"type": "text", "text": "Which colour fills this image? One word."},
    {"type": "image_url", "image_url": {"url": _RED}},
)
_QUESTIONS: Final[Mapping[str, tuple[Mapping[str, Any], Judge]]] = {
    "forced tool call": ({**_WITH_TOOL, "tool_choice": "required"}, _tools),
    "automatic tool call": ({**_WITH_TOOL, "tool_choice": "auto"}, _tools),
    "structured output": (
        _user(
            "Say hello.",
            max_tokens=32,
            response_format={"type": "json_schema", "json_schema": _FORM},
        ),
        _schema,
    ),
    "reasoning": (
        _user(
            "What is 17 times 23? Think first.",
            max_tokens=128,
            chat_template_kwargs={"enable_thinking": True},
        ),
        _reasoning,
    ),
    "image": (_user(list(_PICTURE), max_tokens=16), _image),
}
"""What is asked, and who judges the answer."""
