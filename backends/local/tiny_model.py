"""A tiny Gemma 4 with random weights, made by the Python that runs vLLM: `tiny_model.py OUT`."""

import importlib
import sys
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

RECIPE: Final = Path(__file__).with_name("vllm.toml")


def main(out: Path) -> None:
    """Write the model, its tokenizer and its generation defaults; the same ones every time."""
    recipe = tomllib.loads(RECIPE.read_text("utf-8"))["tiny_model"]
    tokenizer = make_tokenizer(recipe)
    tokenizer.save_pretrained(out)
    save_model(recipe, out, tokenizer)


def make_tokenizer(recipe: Mapping[str, Any]) -> Any:
    # torch, transformers and tokenizers live beside vLLM, not beside this project.
    transformers = importlib.import_module("transformers")
    options = recipe["tokenizer"]
    bpe = trained(corpus(options), options["special_tokens"], recipe["shape"]["vocab_size"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        **options["roles"],
        model_max_length=recipe["shape"]["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = options["chat_template"].lstrip("\n")
    return tokenizer


def corpus(options: Mapping[str, Any]) -> Iterator[str]:
    for first, last in options["unicode_names"]:
        names = (unicodedata.ucd_3_2_0.name(chr(code), "") for code in range(first, last + 1))
        yield " ".join(name.lower() for name in names if name)
    # Often enough that every word above becomes a token of its own.
    yield from [options["words"]] * 20


def trained(texts: Iterator[str], special_tokens: list[str], vocab_size: int) -> Any:
    """Give a byte-level BPE: any text goes in, and comes out as it was."""
    tokenizers = importlib.import_module("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = byte_level(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special_tokens,
            initial_alphabet=sorted(byte_level.alphabet()),
            show_progress=False,
        ),
    )
    return bpe


def save_model(recipe: Mapping[str, Any], out: Path, tokenizer: Any) -> None:
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    marks = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": [
            tokenizer.eos_token_id,
            tokenizer.convert_tokens_to_ids(recipe["tokenizer"]["end_of_turn"]),
        ],
    }
    config = transformers.Gemma4TextConfig(**recipe["shape"], **marks)
    model = transformers.Gemma4ForCausalLM(config).to(torch.bfloat16)
    spread(model, recipe)
    with torch.no_grad():
        model.get_input_embeddings().weight[silent(tokenizer)] = 0
    model.save_pretrained(out)
    transformers.GenerationConfig(**marks).save_pretrained(out)


def spread(model: Any, recipe: Mapping[str, Any]) -> None:
    """Draw every weight matrix anew, wide enough that an answer does not repeat one token."""
    torch = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(recipe["seed"])
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                std = recipe["embedding_spread" if "embed_tokens" in name else "spread"]
                weights.copy_(torch.randn(weights.shape, generator=generator) * std)


def silent(tokenizer: Any) -> list[int]:
    """Give what greedy answers never say: no end of turn, nothing that garbles a terminal."""
    control = [chr(code) for code in (*range(0x20), 0x7F) if chr(code) not in "\n\t"]
    spelled = tokenizer.tokenize("".join(control))
    return [*tokenizer.all_special_ids, *tokenizer.convert_tokens_to_ids(spelled)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
