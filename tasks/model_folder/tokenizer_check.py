"""Check that transformers reads texts by a published folder as training did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.tokenization.folder_settings import FRAME, TOKENIZER_CONFIG, TOKENIZER_JSON
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.stage import Workdir, read_json, write_json

TEXTS = (
    "Hello, World! It's 1,234.56 at the ÉCOLE: naïve, won't it? (a) x=y+1",
    "  two  blanks\n\n\tand a tab, then\u00a0more ",
    "你好，世界 🙂 Straße ǅ İstanbul ሰላም",
)
NO_CLASS = ("auto_map", *FRAME)
"""Settings by which a class, or code beside the tokenizer, changes what tokenizer.json says."""


def settle_tokenizer(folder: Path, out: Workdir) -> None:
    """Publish tokenizer.json alone, without a class that changes it, if transformers reads texts otherwise than training did."""
    if not (folder / TOKENIZER_JSON).exists() or (differs := _difference(folder)) is None:
        return
    own: Meta = read_json(folder / TOKENIZER_CONFIG)
    plain = {name: value for name, value in own.items() if name not in NO_CLASS}
    plain |= {"tokenizer_class": "PreTrainedTokenizerFast", **_inputs(folder)}
    write_json(folder / TOKENIZER_CONFIG, plain)
    of = f"tokenizer_class {own.get('tokenizer_class')}"
    left = _difference(folder)
    if left is None:
        out.info(f"{of} is replaced by PreTrainedTokenizerFast, which reads texts as training did ({differs})")
    else:
        write_json(folder / TOKENIZER_CONFIG, own)
        out.warn(f"transformers reads texts otherwise than training did: {left}; convert the model's tokenizer anew")


def _difference(folder: Path) -> str | None:
    """Return how the ids differ of what transformers and training read; None if they are equal."""
    ours = read_tokenizer(folder).tokenizer
    try:
        theirs = _opened(folder)
        for text in TEXTS:
            if (found := theirs(text, verbose=False)["input_ids"]) != (wanted := ours.encode(text).ids):
                return f"of {text.split(',')[0]!r}: {found[:8]}, not {wanted[:8]}"
        found, wanted = theirs(*TEXTS[:2], verbose=False)["input_ids"], ours.encode(*TEXTS[:2]).ids
        return None if found == wanted else f"of two texts: {found[:8]}, not {wanted[:8]}"
    except Exception as error:  # a class may fail in any way on files that are another's
        return f"it fails: {type(error).__name__}: {str(error)[:200]}"


def _opened(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _inputs(folder: Path) -> Meta:
    """Return which inputs the class gives, for one that is left out."""
    try:
        return {"model_input_names": [*_opened(folder).model_input_names]}
    except Exception:  # as above
        return {}
