"""Text, tokens, and text again."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.engine.engine import Manner, Transcript, Voice, speak
from simulators.engine.model import ByteLevelBpe, ByteTokenizer, decode, load_tokenizer
from tests.simulators.models import tokenizer_document

BPE = ByteLevelBpe(tokenizer_document())
BYTES = ByteTokenizer(1000)


def test_merges_are_applied_in_their_order() -> None:
    """`hello` is one token, `hell` two."""
    assert [len(BPE.encode(text)) for text in ("hello", "hell", " world")] == [1, 2, 5]


def test_special_tokens_in_a_text_count_as_themselves() -> None:
    """A turn marker is one token and no text."""
    tokens = BPE.encode("<bos><|turn>hello")
    assert tokens[:2] == [2, 4]
    assert decode(BPE, tokens) == "hello"


@settings(deadline=None, max_examples=30)
@given(st.text().filter(lambda text: "<" not in text))
def test_both_tokenizers_give_back_what_they_were_given(text: str) -> None:
    """Whatever the script, nothing is lost."""
    clean = text.encode(errors="replace").decode()
    assert decode(BPE, BPE.encode(text)) == clean
    assert decode(BYTES, BYTES.encode(text)) == clean


def test_ids_beyond_the_bytes_are_words() -> None:
    """A benchmark's random ids read as something; ids beyond the vocabulary as nothing."""
    assert decode(BYTES, [900, 5000]) == " w900"


def test_a_model_with_another_tokenizer_gets_one_token_per_byte(tmp_path: Path) -> None:
    """SentencePiece is not applied here."""
    document = {**tokenizer_document(), "normalizer": {"type": "Replace"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    assert len(load_tokenizer(tmp_path, 1000).encode("hello")) == 5
    assert len(load_tokenizer(None, 1000).encode("é")) == 2


def test_the_same_prompt_seed_and_manner_say_the_same() -> None:
    """Any of them changed says something else."""

    def said(prompt: list[int], seed: int = 0, **manner: float) -> list[int]:
        speech = speak(BYTES, prompt, Voice(seed=seed), Manner(ignore_eos=True, **manner))  # type: ignore[arg-type]  # floats stand for all fields
        return [next(speech.tokens) for _ in range(40)]

    usual = said([1, 2])
    assert usual == said([1, 2])
    changed = [said([1, 3]), said([1, 2], 1), said([1, 2], temperature=0.5), said([1, 2], choice=1)]
    assert all(other != usual for other in changed)


def test_an_answer_ends_by_itself_unless_told_not_to() -> None:
    """The end is the end-of-sequence token, and only then."""
    ends = speak(BYTES, [1], Voice(mean_tokens=4), Manner()).tokens
    goes_on = speak(BYTES, [1], Voice(mean_tokens=4), Manner(ignore_eos=True)).tokens
    assert 1 in [next(ends) for _ in range(8)]
    assert 1 not in [next(goes_on) for _ in range(100)]


def test_half_a_character_is_held_back() -> None:
    """A token that ends inside a character makes no text yet."""
    transcript = Transcript(())
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert [transcript.push(first)[0], transcript.push(second)[0]] == ["", "é"]
    assert transcript.push(first) == ("", None)
    assert transcript.close() == "\ufffd"


def test_a_stop_string_across_tokens_is_cut_off() -> None:
    """Nothing of it is said before it is certain that it is none."""
    transcript = Transcript(["END"])
    said = [transcript.push(piece) for piece in (b"a E", b"N", b"D more")]
    assert "".join(text for text, _ in said) == "a "
    assert said[-1][1] == "END"


def test_a_stop_string_can_be_kept() -> None:
    """`include_stop_str_in_output` leaves it in."""
    assert Transcript(["x"], keep_stop=True).push(b"axb") == ("ax", "x")
