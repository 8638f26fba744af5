"""Make the tokenizer of a recipe: the model's own, with new tokens, or one that is trained on its texts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data.texts import text_of_example
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.data.tokenization.folder_settings import published, replaced
from trnflow.tasks.data.tokenization.tokenizer import add_tokens, read_tokenizer, save_tokenizer
from trnflow.tasks.data.tokenization.tokenizer_training import train_tokenizer
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_source import tokenizer_folder
from trnflow.tasks.stage import Workdir
from trnflow.tasks.system.threads import call_in_thread

if TYPE_CHECKING:
    from trnflow.tasks.metadata import TextsMeta

BATCH = 1024


def no_tokenizer() -> ModelError:
    return ModelError("the recipe's model has no tokenizer", "set model.tokenizer, or train one: tokenize.train.kind")


def embeddings_of(model: Source) -> int | None:
    """Return a pretrained model's vocabulary size; None from scratch."""
    config = model.identity.get("config") or {}
    if not config.get("pretrained"):
        return None
    fields = {**config["pretrained"], **config["overrides"]}
    size = fields.get("vocab_size") or (fields.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else None


def make_tokenizer(config: TokenizeConfig, texts: Input[TextsMeta], model: Source, causal: bool, out: Workdir) -> Meta:
    """Read or train the tokenizer, save it as `tokenizer/`, and return its ids. Raises ModelError."""
    folder = None if config.train else tokenizer_folder(model)
    if config.train:
        out.info(f"training a {config.train.kind} tokenizer of {config.train.vocab_size} entries")
        rows = partial(_texts, texts.path / "train.parquet")
        loaded = call_in_thread(partial(train_tokenizer, config.train, rows, causal))
    elif folder is None:
        raise no_tokenizer()
    else:
        loaded = read_tokenizer(folder)
    if (most := embeddings_of(model)) and loaded.vocab_size > most:
        raise ModelError(
            f"the tokenizer {loaded.name} has ids up to {loaded.vocab_size - 1}, and the model takes {most} (its vocab_size)",
            "use the model's own tokenizer (leave model.tokenizer and tokenize.train out)",
        )
    bos = loaded.tokenizer.decode(loaded.prefix(), skip_special_tokens=False) if causal else ""
    if bos and not texts.meta["framed"] and any(text.startswith(bos) for text in texts.meta["templates"]):
        out.warn(
            f"the prompt's template writes {bos}, which the tokenizer adds by itself: training and predict have one, but "
            "programs that are sent the written prompt have two; leave it out of the template"
        )
    added = add_tokens(loaded, config.new_tokens)
    adds = loaded.added_roles()
    settings = published(folder, config.max_length, loaded.truncation_side, adds, per_row=not causal)
    if folder and (found := [*replaced(folder, settings)]):
        out.info(f"the tokenizer is saved with the settings of this training: {', '.join(found)}")
    save_tokenizer(loaded, folder, out.path / "tokenizer", settings, added)
    return {**loaded.meta(), **({"new_tokens": added} if added else {})}


def _texts(path: Path) -> Iterator[str]:
    """Yield each row's text, parts joined."""
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(BATCH):
        for row in batch.to_pylist():
            yield text_of_example(row)
