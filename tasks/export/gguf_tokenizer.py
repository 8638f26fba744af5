"""Write a tokenizer.json into a GGUF file: byte-level BPE (GPT-2, Llama 3, Qwen), or SentencePiece's BPE (Llama 2, Gemma)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.framed import framing
from trnflow.tasks.data.special_tokens import chat_templates, read_object, special_tokens
from trnflow.tasks.errors import ModelError

FIX = "train one with tokenize.train.kind=bpe, or set export.target to stablehlo, onnx or none"
END_ROLES = ("eos", "eot", "eom")
"""GGUF's names of the tokens after which llama.cpp stops."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {_WORDS % r"\p{N}{1,3}": "llama-bpe", _WORDS % r"\p{N}": "qwen2"}
"""{pattern that cuts a text before BPE: llama.cpp's name for it}."""


def write_tokenizer(gguf: Any, writer: Any, folder: Path, rows: int, stops: Sequence[int]) -> list[int]:
    """Write the tokens, their kinds, and how texts become tokens. Raises ModelError for another kind of tokenizer.

    rows: of the embedding; stops: ids that end a text. Returns those that the file has no place for.
    """
    document = read_object(folder / "tokenizer.json")
    model: Meta = document.get("model") or {}
    if model.get("type") != "BPE":
        raise ModelError(f"a GGUF file holds a tokenizer of type BPE, and the model's is {model.get('type')}", FIX)
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    texts = {number: text for text, number in model["vocab"].items()}
    added = {one["id"]: one for one in document.get("added_tokens") or []}
    texts |= {number: one["content"] for number, one in added.items()}
    sentencepiece = bool(model.get("byte_fallback"))

    def kind(number: int) -> Any:
        if number not in texts:
            return gguf.TokenType.UNUSED
        if number in stops:  # a text is shown without it
            return gguf.TokenType.CONTROL
        if texts[number] == model.get("unk_token"):
            return gguf.TokenType.UNKNOWN if sentencepiece else gguf.TokenType.CONTROL
        if number in added:
            return gguf.TokenType.CONTROL if added[number]["special"] else gguf.TokenType.USER_DEFINED
        is_byte = sentencepiece and re.fullmatch("<0x[0-9A-F]{2}>", texts[number])
        return gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL

    writer.add_tokenizer_model("llama" if sentencepiece else "gpt2")
    writer.add_tokenizer_pre("default" if sentencepiece else _split(document))
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in range(rows)])
    writer.add_token_types([kind(number) for number in range(rows)])
    if sentencepiece:
        # llama.cpp joins the two pieces whose union has the highest score, where BPE takes the first merge that fits
        first = {text.replace(" ", ""): -float(rank) for rank, text in reversed([*enumerate(merges, 1)])}
        writer.add_token_scores([first.get(texts.get(number, ""), -1e6) for number in range(rows)])
        writer.add_add_space_prefix(_prepends(document))
    else:
        writer.add_token_merges(merges)
    # llama.cpp frames texts itself, as the tokenizer does
    begins, ends = frames(folder)
    writer.add_add_bos_token(begins)
    writer.add_add_eos_token(ends)
    ids = {text: number for number, text in texts.items()}
    known = {role: ids[text] for role, text in (special_tokens(folder) or {}).items() if text in ids}
    is_written = ends or any("eos_token" in template for template in chat_templates(folder).values())
    roles, left = end_roles(known.get("eos_token"), stops, is_written=is_written)
    roles |= {role: known[f"{role}_token"] for role in ("bos", "unk", "pad") if f"{role}_token" in known}
    for role, number in roles.items():
        getattr(writer, f"add_{role}_token_id")(number)
    return left


def frames(folder: Path) -> tuple[bool, bool]:
    """Return whether a program is to put bos before, and eos after, a text: as the tokenizer does, but no bos before chats
    that were learnt without."""
    read = _tokenizer(folder)
    framed, bare = (read.encode("a", add_special_tokens=some).ids for some in (True, False))
    return framed[:1] != bare[:1] and not _learnt_without_bos(folder), framed[-1:] != bare[-1:]


def _learnt_without_bos(folder: Path) -> bool:
    """Return whether a chat template wrote the texts that the model in a folder learnt, and writes no bos."""
    bos, template = (special_tokens(folder) or {}).get("bos_token", ""), chat_templates(folder).get("default", "")
    return framing(folder) is not None and "bos_token" not in template and bos not in template


def token_texts(folder: Path, ids: Sequence[int]) -> list[str]:
    """Return the texts of a tokenizer's tokens."""
    read = _tokenizer(folder)
    return [str(read.id_to_token(number)) for number in ids]


def _tokenizer(folder: Path) -> Any:
    # by name, as gguf: its version is in the keys of GGUF exports alone
    return import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))


def end_roles(eos: int | None, stops: Sequence[int], *, is_written: bool) -> tuple[dict[str, int], list[int]]:
    """Return {role: id} of three tokens that end a text, and the ids that are left over.

    eos: of the tokenizer; is_written: whether llama.cpp itself writes it, so that it must have that role.
    """
    ends = [end for end in dict.fromkeys([*stops, eos]) if end is not None]
    kept = ends[: len(END_ROLES)]
    if eos is not None and (is_written or eos in kept):
        kept = [eos, *(end for end in ends if end != eos)][: len(END_ROLES)]
    return dict(zip(END_ROLES, kept, strict=False)), [end for end in ends if end not in kept]


def _steps(part: Meta | None, inner: str) -> list[Meta]:
    """Return the steps of a normalizer or pre-tokenizer, which may be one or a sequence."""
    if part is None:
        return []
    return [*part[inner]] if part["type"] == "Sequence" else [part]


def _split(document: Meta) -> str:
    """Return llama.cpp's name of how a byte-level tokenizer cuts texts. Raises ModelError for one that it has not."""
    normalizers = [step["type"] for step in _steps(document.get("normalizer"), "normalizers")]
    steps = _steps(document.get("pre_tokenizer"), "pretokenizers")
    # of composed characters, as most texts are, NFC changes nothing; llama.cpp leaves it out of Qwen's tokenizers, too
    plain = normalizers in ([], ["NFC"]) and steps and steps[-1]["type"] == "ByteLevel"
    if plain and not steps[-1]["add_prefix_space"]:
        if len(steps) == 1 and steps[0].get("use_regex", True):
            return "gpt-2"
        if len(steps) == 2 and steps[0]["type"] == "Split" and not steps[1].get("use_regex", True):
            pattern = steps[0]["pattern"].get("Regex")
            if pattern in SPLITS and steps[0]["behavior"] == "Isolated" and not steps[0]["invert"]:
                return SPLITS[pattern]
    shown = ", ".join([*normalizers, *(step["type"] for step in steps)]) or "nothing"
    raise ModelError(f"llama.cpp has no tokenizer that prepares texts by {shown} as this one does", FIX)


def _prepends(document: Meta) -> bool:
    """Return whether a space is put before a text."""
    steps = _steps(document.get("normalizer"), "normalizers") + _steps(document.get("pre_tokenizer"), "pretokenizers")
    return any(step["type"] == "Prepend" or step.get("prepend_scheme", "never") != "never" for step in steps)
