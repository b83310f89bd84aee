"""What a real vLLM and the simulated engine are both asked."""

from collections.abc import Mapping
from typing import Any, Final

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
IDS: Final = list(range(300, 440))
LONG: Final = [300] * 2100
KEY: Final = {"authorization": "Bearer k"}
USAGE: Final = {"include_usage": True}
EACH: Final = {"include_usage": True, "continuous_usage_stats": True}
GREEDY: Final = {"temperature": 0, "ignore_eos": True, "max_tokens": 24}
HELLO: Final = [{"role": "user", "content": "Say hello, please: é"}]
TOOLS: Final = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


ANSWERED: Final[list[tuple[str, dict[str, Any]]]] = [
    (TEXT, {"prompt": IDS}),
    (TEXT, {"prompt": IDS[:40], "model": "tiny"}),
    (TEXT, {"prompt": (IDS * 15)[:2040]}),
    (TEXT, {"prompt": "hello", "min_tokens": 5, "seed": 3, "unknown": 1}),
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 3}),
    (CHAT, {"messages": HELLO, "tools": TOOLS, "tool_choice": "none"}),
    (CHAT, {"messages": [{"role": "system", "content": [{"type": "text", "text": " a "}]}]}),
    ("/tokenize", {"messages": HELLO}),
    ("/tokenize", {"prompt": "hello", "return_token_strs": True}),
]
STREAMED: Final[list[tuple[str, dict[str, Any]]]] = [
    (TEXT, {"prompt": IDS}),
    (TEXT, {"prompt": IDS, "stream_options": USAGE}),
    (TEXT, {"prompt": IDS, "stream_options": EACH}),
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "stream_options": USAGE}),
    (CHAT, {"messages": HELLO, "stream_options": EACH}),
]
REFUSED: Final[list[tuple[str, Any]]] = [
    (TEXT, {"prompt": IDS, "model": "other"}),
    (TEXT, {"prompt": IDS, "model": "other", "stream": True}),
    (TEXT, {"prompt": LONG}),
    (TEXT, {"prompt": LONG[:2048]}),
    (TEXT, {"prompt": IDS, "max_tokens": 3000}),
    (TEXT, {"prompt": [100_000]}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": HELLO, "max_tokens": 5000}),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 5000}),
    (CHAT, {"messages": HELLO, "tools": TOOLS}),
    (CHAT, {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"}),
    (CHAT, {"messages": HELLO, "tool_choice": "auto"}),
    ("/tokenize", {"prompt": "x", "model": "other"}),
]
MISREAD: Final[list[tuple[str, Any]]] = [
    (TEXT, {"prompt": IDS, "max_tokens": "abc"}),
    (TEXT, {"prompt": [-1]}),
    (CHAT, {"messages": "x"}),
    (CHAT, {}),
    (CHAT, []),
    (TEXT, {"prompt": IDS, "min_tokens": 50}),
    (TEXT, {"prompt": IDS, "temperature": -1}),
    (TEXT, {"prompt": IDS, "top_p": 2}),
    (TEXT, {"prompt": IDS, "top_k": -2}),
    (TEXT, {"prompt": IDS, "min_p": 2}),
    (TEXT, {"prompt": IDS, "presence_penalty": 3}),
    (TEXT, {"prompt": IDS, "repetition_penalty": 0}),
]
LOOKED_AT: Final[list[tuple[str, str, Mapping[str, str]]]] = [
    ("GET", "/health", {}),
    ("GET", "/ping", {}),
    ("POST", "/ping", {}),
    ("GET", "/version", {}),
    ("GET", "/v1/models", KEY),
    ("GET", "/v1/models", {}),
    ("GET", "/v1/models", {"authorization": "Bearer wrong"}),
    ("GET", "/v1/models", {"authorization": "Basic k"}),
    ("GET", "/nope", {}),
    ("GET", "/v1/nope", KEY),
    ("GET", TEXT, KEY),
    ("POST", "/health", {}),
]
