"""Requests with one thing wrong, or odd, in them: every field with values of every kind."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tests.simulators.agreement_cases import CHAT, HELLO, TEXT, TOOLS

Asked = tuple[str, dict[str, Any]]


def any_of(*values: Any) -> Sequence[Any]:
    """Return the values, whatever they are."""
    return values


VALUES: Final[Sequence[Any]] = (
    None, True, -2, -1, 0, 1, 3, 2.5, 10**6, "", "x", "3", [], [1], [-1], [10**6], ["x"],
    [""], [None], {}, {"a": 1}, {"300": 1}, {"a": "x"}, {"300": 101},
)  # fmt: skip
BOTH: Final = (
    "model", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty",
    "response_format", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "user",
    "use_beam_search", "top_k", "min_p", "repetition_penalty", "watermarking", "length_penalty",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens",
    "truncation_side", "prompt_logprobs", "logprob_token_ids", "allowed_token_ids", "bad_words",
    "echo", "add_special_tokens", "structured_outputs", "priority", "request_id", "session_id",
    "return_tokens_as_token_ids", "return_token_ids", "routed_experts_prompt_start",
    "return_token_offsets", "mm_payload", "return_mm_kwargs", "cache_salt", "kv_transfer_params",
    "ec_transfer_params", "vllm_xargs", "repetition_detection", "thinking_token_budget",
    "stream_interval", "unheard_of",
)  # fmt: skip
OF_TEXT: Final = ("prompt", "suffix", "prompt_embeds", "best_of")
OF_CHAT: Final = (
    "messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice", "reasoning_effort",
    "include_reasoning", "parallel_tool_calls", "add_generation_prompt", "continue_final_message",
    "documents", "chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs",
    "return_prompt_text", "functions", "function_call",
)  # fmt: skip
_NAMED: Final = {"type": "function", "function": {"name": "f"}}
_SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}}
_DETECTION: Final = {"max_pattern_size": 4, "min_count": 3}
ODD_TEXTS: Final[Sequence[dict[str, Any]]] = (
    {"prompt": [[]]},
    {"prompt": [[1], []]},
    {"prompt": [[], []]},
    {"prompt": ["", "x"]},
    {"prompt": ["x", [1]]},
    {"prompt": [[1], "x"]},
    {"prompt": [[10**6]]},
    {"prompt": [[-1]]},
    {"prompt": [["x"]]},
    {"prompt": [1, 2.5]},
    {"prompt": [True]},
    {"prompt": "x", "echo": True, "max_tokens": 0},
    {"prompt": "x", "echo": True, "logprobs": 1, "max_tokens": 0},
    {"prompt": "x", "echo": True, "stream": True, "max_tokens": 0},
    {"prompt": "x", "n": 2, "use_beam_search": True},
    {"prompt": "x", "stream": True, "use_beam_search": True},
    {"prompt": "x", "prompt_logprobs": 1, "stream": True},
    {"prompt": "x", "prompt_logprobs": -1, "stream": True},
    {"prompt": "x", "logprobs": 1, "logprob_token_ids": [1]},
)
ODD_CHATS: Final[Sequence[dict[str, Any]]] = (
    *(
        {"messages": [message]}
        for message in any_of(
            {},
            {"role": "user"},
            {"role": "user", "content": None},
            {"role": "user", "content": 5},
            {"role": "user", "content": ""},
            {"role": "user", "content": []},
            {"role": "user", "content": {}},
            {"role": "user", "content": True},
            {"role": "user", "content": ["x"]},
            {"role": "user", "content": [5]},
            {"role": "user", "content": [{}]},
            {"role": "user", "content": [{"type": "text"}]},
            {"role": "user", "content": [{"type": "text", "text": 5}]},
            {"role": "user", "content": [{"type": "text", "text": None}]},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "user", "content": [{"text": "x"}]},
            {"role": "user", "content": [{"type": "nonsense", "text": "x"}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            {"role": "user", "content": [{"type": "refusal", "refusal": "x"}]},
            {"role": "user", "content": "x", "name": 5},
            {"role": "user", "content": "x", "name": "n"},
            {"role": "user", "content": "x", "more": 1},
            {"role": 5, "content": "x"},
            {"role": None, "content": "x"},
            {"role": "", "content": "x"},
            {"role": "nobody", "content": "x"},
            {"role": "system", "content": "x"},
            {"role": "developer", "content": "x"},
            {"role": "assistant", "content": "x"},
            {"role": "assistant", "content": None},
            {"role": "assistant"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "assistant", "content": None, "tool_calls": [{}]},
            {"role": "assistant", "content": None, "tool_calls": "x"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "f", "arguments": "no json"},
                    }
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}],
            },
            {"role": "tool", "content": "x"},
            {"role": "tool", "content": "x", "tool_call_id": "a"},
            {"role": "tool", "tool_call_id": "a"},
            {"role": "function", "content": "x"},
            {"content": "x"},
        )
    ),
    {"messages": [5]},
    {"messages": ["x"]},
    {"messages": [[]]},
    {"messages": [None]},
    {"messages": [*HELLO, 5]},
    {"messages": {"role": "user", "content": "x"}},
    *(
        {"tools": tools}
        for tools in any_of(
            [{}],
            [5],
            [{"type": "function"}],
            [{"type": "other", "function": {"name": "f"}}],
            [{"type": "function", "function": {}}],
            [{"type": "function", "function": {"name": 5}}],
            [{"type": "function", "function": {"name": ""}}],
            [{"type": "function", "function": {"name": "f", "parameters": 5}}],
            [{"type": "function", "function": {"name": "f", "parameters": None}}],
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}],
            [{"type": "function", "function": {"name": "f", "description": 5}}],
            [{"type": "function", "function": {"name": "f", "strict": "x"}}],
            [{"function": {"name": "f"}}],
            [*TOOLS, *TOOLS],
            [{"type": "function", "name": "f"}],
        )
    ),
    *(
        {"tools": tools, "tool_choice": choice}
        for tools in (TOOLS, [], None)
        for choice in any_of(
            None,
            "none",
            "auto",
            "required",
            "f",
            "",
            5,
            [],
            {},
            _NAMED,
            {"type": "function"},
            {"type": "function", "function": {}},
            {"type": "function", "function": {"name": "g"}},
            {"type": "other", "function": {"name": "f"}},
            {"function": {"name": "f"}},
            {"type": "function", "function": "f"},
            {"type": "function", "name": "f"},
        )
    ),
    {"tool_choice": _NAMED},
    {"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False},
    {"tools": TOOLS, "tool_choice": "none", "response_format": {"type": "json_object"}},
    {"tools": TOOLS, "tool_choice": _NAMED, "stream": True},
    {"tools": TOOLS, "tool_choice": "required", "stream": True},
    {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": -1},
    {"logprobs": True, "top_logprobs": 0},
    {"logprobs": True, "top_logprobs": 20},
    {"logprobs": True, "top_logprobs": 21},
    {"logprobs": False, "top_logprobs": 2},
    {"logprobs": True, "logprob_token_ids": [1]},
    {"continue_final_message": True, "add_generation_prompt": False},
    {"continue_final_message": True, "add_generation_prompt": True},
    {"chat_template": "{{ 1"},
    {"chat_template": "hello"},
    {"chat_template_kwargs": {"chat_template": "x"}},
    {"chat_template_kwargs": {"tokenize": False}},
    {"chat_template_kwargs": {"enable_thinking": True}},
    {"reasoning_effort": "low"},
    {"reasoning_effort": "none"},
    {"reasoning_effort": "enormous"},
    {"stream": True, "use_beam_search": True},
    {"prompt_logprobs": 1, "stream": True},
    {"max_tokens": 1, "max_completion_tokens": 1},
    {"max_tokens": 10**6, "max_completion_tokens": 1},
)
ODD_OF_BOTH: Final[Sequence[dict[str, Any]]] = (
    *(
        {"response_format": form}
        for form in any_of(
            {"type": "text"},
            {"type": "json_object"},
            {"type": "nonsense"},
            {"type": 5},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {}},
            {"type": "json_schema", "json_schema": 5},
            {"type": "json_schema", "json_schema": {"name": "a"}},
            {"type": "json_schema", "json_schema": {"schema": _SCHEMA}},
            {"type": "json_schema", "json_schema": {"name": 5, "schema": _SCHEMA}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": []}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
            {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": _SCHEMA, "strict": "maybe"},
            },
            {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}},
            {"type": "structural_tag"},
            {"type": "structural_tag", "structures": [], "triggers": []},
        )
    ),
    *(
        {"structured_outputs": form}
        for form in any_of(
            {"json": _SCHEMA},
            {"json": "x"},
            {"json": 5},
            {"json": "{}"},
            {"json": {"type": "nonsense"}},
            {"regex": "a+"},
            {"regex": "("},
            {"regex": ""},
            {"regex": 5},
            {"choice": ["a", "b"]},
            {"choice": []},
            {"choice": "a"},
            {"choice": [1]},
            {"choice": [""]},
            {"grammar": 'root ::= "a"'},
            {"grammar": "x"},
            {"grammar": ""},
            {"grammar": 5},
            {"json_object": True},
            {"json_object": False},
            {"structural_tag": "x"},
            {"structural_tag": "{}"},
            {"json": _SCHEMA, "regex": "a"},
            {"choice": ["a"], "regex": "a"},
            {"unheard_of": 1},
            {"json": None},
            {"regex": "a", "whitespace_pattern": " "},
            {"json_object": True, "disable_any_whitespace": "x"},
        )
    ),
    {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    {"stop": ["a", ""]},
    {"stop": ["a"] * 5},
    {"stop": ["a", 5]},
    {"stop": ["a"] * 100},
    {"stop": "a", "include_stop_str_in_output": True},
    {"stop": "a", "skip_special_tokens": False},
    {"logit_bias": {"1": 1}},
    {"logit_bias": {"1": -100}},
    {"logit_bias": {"1": 101}},
    {"logit_bias": {"-1": 1}},
    {"logit_bias": {"1000000": 1}},
    {"logit_bias": {"1.5": 1}},
    {"allowed_token_ids": [300]},
    {"allowed_token_ids": [300, 10**6]},
    {"bad_words": ["a", ""]},
    {"stream": True, "stream_options": {}},
    {"stream": True, "stream_options": {"include_usage": "x"}},
    {"stream": True, "stream_options": {"include_usage": None}},
    {"stream": False, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    {"stream": True, "stream_options": []},
    {"stream": True, "stream_options": "x"},
    {"stream": True, "n": 2},
    {"stream": True, "temperature": -1},
    {"stream": True, "max_tokens": -1},
    {"stream": True, "logprobs": 50},
    {"n": 2},
    {"n": 2, "temperature": 1},
    {"n": 200},
    {"n": 20_000},
    {"temperature": 0, "n": 2},
    {"temperature": 2},
    {"temperature": 2.01},
    {"temperature": "0.5"},
    {"top_p": 0.5},
    {"min_p": 0.5},
    {"top_k": -1},
    {"top_k": "5"},
    {"seed": -1},
    {"seed": 2**63},
    {"seed": 1.0},
    {"min_tokens": 2, "max_tokens": 2},
    {"min_tokens": 3, "max_tokens": 2},
    {"max_tokens": "2"},
    {"max_tokens": 2.0},
    {"truncate_prompt_tokens": 1, "truncation_side": "left"},
    {"truncation_side": "left"},
    {"truncation_side": "middle"},
    {"mm_payload": "none"},
    {"mm_payload": "other"},
    {"priority": 2**63},
    {"cache_salt": "x" * 1025},
    {"repetition_detection": _DETECTION},
    {"repetition_detection": {**_DETECTION, "max_pattern_size": -1}},
    {"repetition_detection": {**_DETECTION, "min_count": 0}},
    {"vllm_xargs": {"a": [1, "b"]}},
    {"vllm_xargs": {"a": {}}},
    {"vllm_xargs": {"a": None}},
    {"watermarking": True, "temperature": 0},
    {"thinking_token_budget": 5.0},
    {"use_beam_search": True, "n": 2, "logprobs": 1},
    {"use_beam_search": True, "stop": ["a"]},
    {"model": "tiny"},
    {"model": "other"},
    {"model": "Tiny"},
    {"model": "tiny "},
)


def _asked() -> Iterator[Asked]:
    few = {"max_tokens": 2}
    text, chat = {"prompt": "hello", **few}, {"messages": HELLO, **few}
    for path, base, fields, odd in (
        (TEXT, text, (*BOTH, *OF_TEXT), (*ODD_OF_BOTH, *ODD_TEXTS)),
        (CHAT, chat, (*BOTH, *OF_CHAT), (*ODD_OF_BOTH, *ODD_CHATS)),
    ):
        for field in fields:
            yield from ((path, {**base, field: value}) for value in VALUES)
        yield from ((path, {**base, **more}) for more in odd)


REQUESTS: Final[Sequence[Asked]] = tuple(
    {
        json.dumps(one): one
        for one in _asked()
        if one != (CHAT, {"messages": HELLO, "max_tokens": None})  # is answered for a minute
    }.values()
)


def held_back(asked: Asked) -> bool:
    """Whether a request is of the third that nobody looks at while the simulator is mended."""
    return hashlib.sha256(json.dumps(asked).encode()).digest()[0] % 3 == 0
