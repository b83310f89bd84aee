"""What clients show people in place of a tool's name."""

from typing import Final

_SPELLED: Final = {
    "ai": "AI",
    "azure": "Azure",
    "gemma4": "Gemma 4",
    "gpu": "GPU",
    "hf": "Hugging Face",
    "huggingface": "Hugging Face",
    "huggingfacehub": "Hugging Face Hub",
    "sre": "SRE",
    "vertex": "Vertex",
    "vllm": "vLLM",
    "vm": "VM",
}


def title(name: str) -> str:
    """Spell a tool's name as people do.

    >>> title("get_vllm_gpu_deployment_config")
    'Get vLLM GPU deployment config'
    """
    words = [_SPELLED.get(word, word) for word in name.split("_")]
    return " ".join([words[0].capitalize(), *words[1:]])
