"""What a real vLLM and the simulated engine are both asked."""

from collections.abc import Mapping
from typing import Any, Final

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
IDS: Final = list(range(300, 440))
LONG: Final = [300] * 2100
KEY: Final = {"authorization": "Bearer k"}
ELSEWHERE: Final = {"origin": "http://elsewhere", "access-control-request-method": "GET"}
USAGE: Final = {"include_usage": True}
EACH: Final = {"include_usage": True, "continuous_usage_stats": True}
GREEDY: Final = {"temperature": 0, "ignore_eos": True, "max_tokens": 24}
HELLO: Final = [{"role": "user", "content": "Say hello, please: é"}]
LECTURE: Final = [{"role": "user", "content": "one thing and another " * 60}]
"""More than two blocks of 128 tokens, for the prefix cache."""
TOOLS: Final = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


ANSWERED: Final[list[tuple[str, dict[str, Any]]]] = [
    (TEXT, {"prompt": IDS}),
    (TEXT, {"prompt": IDS}),
    (TEXT, {"prompt": IDS[:40], "model": "tiny", "return_token_ids": True}),
    (TEXT, {"prompt": [IDS, IDS[5:], [7, 8]]}),
    (TEXT, {"prompt": ["hello world", "let me see — 東京"], "n": 2, "temperature": 1}),
    (TEXT, {"prompt": (IDS * 15)[:2040]}),
    (TEXT, {"prompt": "hello", "max_tokens": None}),
    (TEXT, {"prompt": "hello", "min_tokens": 5, "seed": 3, "unknown": 1}),
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 3}),
    (CHAT, {"messages": LECTURE}),
    (CHAT, {"messages": LECTURE}),
    (CHAT, {"messages": HELLO, "n": 2, "temperature": 0.7}),
    (CHAT, {"messages": HELLO, "return_token_ids": True}),
    (CHAT, {"messages": HELLO, "tools": TOOLS, "tool_choice": "none"}),
    (CHAT, {"messages": [{"role": "system", "content": [{"type": "text", "text": " a "}]}]}),
]
STREAMED: Final[list[tuple[str, dict[str, Any]]]] = [
    (TEXT, {"prompt": IDS}),
    (TEXT, {"prompt": IDS, "stream_options": USAGE}),
    (TEXT, {"prompt": IDS, "stream_options": EACH}),
    (TEXT, {"prompt": IDS[:9], "return_token_ids": True}),
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "stream_options": USAGE}),
    (CHAT, {"messages": HELLO, "stream_options": EACH}),
    (CHAT, {"messages": HELLO, "return_token_ids": True}),
]
REFUSED: Final[list[tuple[str, Any]]] = [
    (TEXT, {"prompt": IDS, "model": "other"}),
    (TEXT, {"prompt": IDS, "model": "other", "stream": True}),
    (TEXT, {"prompt": LONG}),
    (TEXT, {"prompt": LONG[:2048]}),
    (TEXT, {"prompt": IDS, "max_tokens": 3000}),
    (TEXT, {"prompt": IDS, "max_tokens": -1}),
    (TEXT, {"prompt": IDS, "max_tokens": "abc"}),
    (TEXT, {"prompt": IDS, "max_tokens": 2.5}),
    (TEXT, {"prompt": IDS, "min_tokens": 50}),
    (TEXT, {"prompt": IDS, "min_tokens": -1}),
    (TEXT, {"prompt": IDS, "temperature": -1}),
    (TEXT, {"prompt": IDS, "temperature": 2.5}),
    (TEXT, {"prompt": IDS, "top_p": 2}),
    (TEXT, {"prompt": IDS, "top_k": -2}),
    (TEXT, {"prompt": IDS, "min_p": 2}),
    (TEXT, {"prompt": IDS, "n": 0}),
    (TEXT, {"prompt": IDS, "n": 2, "temperature": 0}),
    (TEXT, {"prompt": IDS, "presence_penalty": 3}),
    (TEXT, {"prompt": IDS, "frequency_penalty": 3}),
    (TEXT, {"prompt": IDS, "repetition_penalty": 0}),
    (TEXT, {"prompt": IDS, "stream_options": USAGE}),
    (TEXT, {"prompt": [100_000]}),
    (TEXT, {"prompt": [-1]}),
    (TEXT, {"prompt": []}),
    (TEXT, {"prompt": ""}),
    (TEXT, {"prompt": {"a": 1}}),
    (TEXT, {"prompt": [IDS, 5]}),
    (TEXT, {}),
    (TEXT, []),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": "x"}),
    (CHAT, {}),
    (CHAT, {"messages": HELLO, "max_tokens": 5000}),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 5000}),
    (CHAT, {"messages": HELLO, "tools": TOOLS}),
    (CHAT, {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"}),
    (CHAT, {"messages": HELLO, "tool_choice": "auto"}),
    ("/tokenize", {"prompt": "x", "model": "other"}),
    ("/detokenize", {"tokens": ["a"]}),
    ("/detokenize", {"tokens": [-1]}),
]
LOOKED_AT: Final[list[tuple[str, str, Mapping[str, str]]]] = [
    ("GET", "/health", {}),
    ("GET", "/ping", {}),
    ("POST", "/ping", {}),
    ("GET", "/version", {}),
    ("GET", "/load", {}),
    ("GET", "/v1/models", KEY),
    ("GET", "/v1/models", {}),
    ("GET", "/v1/models", {"authorization": "Bearer wrong"}),
    ("GET", "/v1/models", {"authorization": "Basic k"}),
    ("GET", "/nope", {}),
    ("GET", "/v1/nope", KEY),
    ("GET", TEXT, KEY),
    ("POST", "/health", {}),
    ("HEAD", "/health", {}),
    ("OPTIONS", TEXT, {}),
    ("GET", "/invocations", {}),
    ("GET", "/kv_event_sources", {}),
    ("POST", "/is_scaling_elastic_ep", {}),
    ("HEAD", "/docs", {}),
    ("HEAD", "/openapi.json", {}),
    ("OPTIONS", "/v1/models", ELSEWHERE),
    ("GET", "/health", ELSEWHERE),
    ("GET", "/v1/models", {**ELSEWHERE, **KEY}),
    ("POST", "/invocations", {"content-type": "application/json"}),
]
INVOKED: Final[list[dict[str, Any]]] = [
    {"prompt": "hello"},
    {"prompt": "hello", "model": "other"},
    {"prompt": "hello", "max_tokens": "a"},
    {"prompt": "hello", "max_tokens": -2},
    {"messages": HELLO},
    {"messages": HELLO, "prompt": "hello"},
    {"messages": [], "prompt": "hello"},
    {},
]
"""Bodies for /invocations, which asks for no key."""
