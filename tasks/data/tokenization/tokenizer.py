"""Read and save fast tokenizers in Hugging Face folders, without torch or transformers.

Padding uses the pad token, else eos (Llama 2 has no pad token; padding is masked everywhere). Only TOKENIZER_FILES are
read, whose digests are in the key.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.special_tokens import chat_templates, read_object, special_tokens
from trnflow.tasks.data.tokenization.folder_settings import (
    AS_IT_IS,
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    Obeyed,
    Side,
    obey,
)
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_sizes import CHAT_TEMPLATE, TOOL_TEMPLATE
from trnflow.tasks.sources.model_source import TOKENIZER_FILES
from trnflow.tasks.stage import write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from trnflow.tasks.metadata import SpecialIds

BERT_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_USUAL = {
    "pad_token": ("[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>"),
    "bos_token": ("<s>", "<bos>", "<|begin_of_text|>"),
    "eos_token": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}


@dataclass(frozen=True)
class FastTokenizer:
    """A tokenizer with its special tokens; its own truncation and padding are off.

    special: {role such as `pad_token`: text}; obeyed: what tokenizer_config.json changed.
    """

    tokenizer: Tokenizer
    special: dict[str, str]
    name: str
    obeyed: Obeyed = AS_IT_IS

    @property
    def truncation_side(self) -> Side:
        return self.obeyed.side

    def id_of(self, role: str) -> int | None:
        """Return a role's token id, or None."""
        text = self.special.get(role)
        number: int | None = self.tokenizer.token_to_id(text) if text else None
        return number

    @property
    def pad_id(self) -> int:
        """The pad token's id, else eos'. Raises ModelError with neither."""
        for role in ("pad_token", "eos_token"):
            if (number := self.id_of(role)) is not None:
                return number
        raise ModelError(
            f"the tokenizer {self.name} has neither a pad nor an eos token, so rows can't be padded",
            'name one in its tokenizer_config.json, e.g. "pad_token": "<unk>"',
        )

    @property
    def pad_ids(self) -> list[int]:
        """The ids of tokens for padding: `pad_id`, then entries with a usual name of a pad token."""
        usual = [self.tokenizer.token_to_id(text) for text in _USUAL["pad_token"]]
        return [self.pad_id, *(number for number in usual if number is not None)]

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return int(max(self.tokenizer.get_vocab(with_added_tokens=True).values())) + 1

    def frame(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer puts before ([CLS], bos) and after ([SEP]) each text."""
        encoded = self.tokenizer.encode("a")
        ids, marks = encoded.ids, encoded.special_tokens_mask
        first = [*marks, 0].index(0)
        return ids[:first], ids[len(ids) - [*reversed(marks), 0].index(0) :] if first < len(ids) else []

    def added_roles(self) -> set[str]:
        """The roles of the tokens of `frame`."""
        ids = {number for side in self.frame() for number in side}
        return {role for role in self.special if self.id_of(role) in ids}

    def prefix(self) -> list[int]:
        """The ids put before each text: bos, or none."""
        return self.frame()[0]

    def meta(self) -> SpecialIds:
        """Return vocab_size, pad_id, bos_id and eos_id (null if there is none)."""
        return {
            "vocab_size": self.vocab_size,
            "pad_id": self.pad_id,
            "bos_id": self.id_of("bos_token"),
            "eos_id": self.id_of("eos_token"),
        }


def read_tokenizer(folder: Path) -> FastTokenizer:
    """Read tokenizer.json, else a WordPiece vocab.txt. Raises ModelError."""
    if (folder / "tokenizer.json").exists():
        return _read_fast(folder)
    if (folder / "vocab.txt").exists():
        return _read_vocabulary(folder)
    raise ModelError(
        f"{folder.name} has no tokenizer that can be read: neither tokenizer.json nor vocab.txt",
        "convert it once: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
    )


def add_tokens(loaded: FastTokenizer, tokens: Sequence[str]) -> list[int]:
    """Add `tokenize.new_tokens` in place, found literally and kept by `skip_special_tokens`, and return their ids, which
    follow the last. Raises ModelError for a token that exists, or is not decoded as it is written."""
    from tokenizers import AddedToken

    tokenizer, first = loaded.tokenizer, loaded.vocab_size
    for token in tokens:
        ids = tokenizer.encode(token, add_special_tokens=False).ids
        is_read = len(ids) == 1 and tokenizer.decode(ids, skip_special_tokens=False) == token
        number = ids[0] if is_read else tokenizer.token_to_id(token)
        if number is not None:
            raise ModelError(
                f"tokenize.new_tokens: {token!r} is a token of {loaded.name} already, with id {number}", "leave it out"
            )
    # normalized: the text would be looked for in what a normaliser such as BERT's has lowercased
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    for number, token in enumerate(tokens, first):
        read, written = tokenizer.encode(token, add_special_tokens=False).ids, tokenizer.decode([number])
        if read != [number] or written != token:
            raise ModelError(
                f"tokenize.new_tokens: {loaded.name} encodes {token!r} as {read} and decodes {number} as {written!r}",
                "write it without blanks at its ends, in letters of ASCII",
            )
    return [*range(first, first + len(tokens))]


def save_tokenizer(
    loaded: FastTokenizer, source: Path | None, to: Path, settings: Meta, added: Sequence[int] = ()
) -> None:
    """Write a tokenizer as `PreTrainedTokenizerFast` loads it. source: the folder it was read from, which is copied;
    None if it was trained here; settings: replace those of tokenizer_config.json; added: what `add_tokens` returned."""
    to.mkdir(parents=True)
    templates = chat_templates(source) if source is not None and (source / TOOL_TEMPLATE).exists() else {}
    for name in {*TOKENIZER_FILES} - ({CHAT_TEMPLATE, TOOL_TEMPLATE} if templates else {TOOL_TEMPLATE}):
        if source is not None and (source / name).exists():
            shutil.copyfile(source / name, to / name)
    own = read_object(to / TOKENIZER_CONFIG) or {"tokenizer_class": "PreTrainedTokenizerFast", **loaded.special}
    # the folder written has no folders in it; transformers reads several templates here, too
    if templates:
        own = {**own, "chat_template": [{"name": name, "template": text} for name, text in templates.items()]}
    if added or loaded.obeyed.is_changed or not (to / TOKENIZER_JSON).exists():
        loaded.tokenizer.save(str(to / TOKENIZER_JSON))
    # a list of the added tokens beside tokenizer.json must name the new ones too
    if added and (known := own.get("added_tokens_decoder")):
        entry: Meta = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word", "special"), False)
        new: Meta = {str(number): {**entry, "content": loaded.tokenizer.id_to_token(number)} for number in added}
        own = {**own, "added_tokens_decoder": {**known, **new}}
    write_json(to / TOKENIZER_CONFIG, {**own, **settings})


def _read_fast(folder: Path) -> FastTokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{folder.name}/tokenizer.json can't be read: {error}", "save the tokenizer anew") from error
    named = special_tokens(folder)
    special = named if named is not None else _usual(tokenizer)
    obeyed = obey(tokenizer, read_object(folder / TOKENIZER_CONFIG))
    return FastTokenizer(tokenizer, special, folder.name, obeyed)


def _read_vocabulary(folder: Path) -> FastTokenizer:
    """Read vocab.txt as a BERT tokenizer. Without config it lowercases if no entry but special tokens has capitals."""
    from tokenizers import Tokenizer, models

    entries = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {entry: index for index, entry in enumerate(entries) if entry}
    config = read_object(folder / TOKENIZER_CONFIG)
    has_capitals = any(entry.lower() != entry for entry in vocabulary if entry[0] != "[")
    lowercase = bool(config.get("do_lower_case", not has_capitals))
    special = {**BERT_SPECIAL, **(special_tokens(folder) or {})}
    missing = [text for text in special.values() if text not in vocabulary]
    if missing:
        raise ModelError(f"{folder.name}/vocab.txt has no {missing[0]}", "use the vocabulary that belongs to the model")
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=special["unk_token"]))
    bert_pipeline(tokenizer, lowercase, special)
    return FastTokenizer(tokenizer, special, folder.name, obey(tokenizer, config))


def bert_pipeline(tokenizer: Tokenizer, lowercase: bool, special: dict[str, str]) -> None:
    """Give a WordPiece tokenizer BERT's normalizer, pre-tokenizer, decoder, special tokens and frame, in place."""
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(special.values()))
    cls, sep = special["cls_token"], special["sep_token"]
    ids = [(text, tokenizer.token_to_id(text)) for text in (cls, sep)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=ids
    )


def _usual(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens of a tokenizer without config, by their usual names."""
    named = {
        role: [text for text in texts if tokenizer.token_to_id(text) is not None] for role, texts in _USUAL.items()
    }
    return {role: texts[0] for role, texts in named.items() if texts}
