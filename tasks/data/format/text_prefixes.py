"""Find texts without the prefixes that a model of vectors was trained with, which its card alone names.

E5 and Nomic's models have no `prompts` in config_sentence_transformers.json. Vectors of texts without prefixes are worse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trnflow.tasks.artifact import Source
from trnflow.tasks.data.tables import read_rows

FAMILIES = {
    r"\be5-(small|base|large)\b(?!.*instruct)": ("query: ", "passage: "),
    r"\bnomic-embed-text": ("search_query: ", "search_document: ", "clustering: ", "classification: "),
}
"""{pattern of a model's name or folder: what its texts begin with}."""
ROWS = 1000
"""Rows of train that are looked at."""


def lacking_prefixes(model: Source, train: Path) -> Iterator[str]:
    """Yield a remark if most texts of train lack the model's prefixes. train: Parquet file with the column `text`."""
    config = model.identity["config"]["pretrained"] or {}
    folder = Path((model.location.get("model") or {}).get("folder") or "")
    # a project's folder may be named after another model; a hub's cache has models--ORG--NAME above the snapshot
    own = (part for part in folder.parts if part == folder.name or part.startswith("models--"))
    known = " ".join(filter(None, (model.identity.get("name"), config.get("_name_or_path"), *own)))
    prefixes = next((texts for pattern, texts in FAMILIES.items() if re.search(pattern, known, re.IGNORECASE)), None)
    if prefixes is None:
        return
    texts = read_rows(train, 0, ROWS, ["text"]).column("text").to_pylist()
    having = sum(text.startswith(prefixes) for text in texts)
    if 2 * having < len(texts):
        yield (
            f"texts of this model begin with `{prefixes[0]}` or `{prefixes[1]}`, as its card says, and {having} of {len(texts)} "
            "of train do: write them into the rows, and before each text that is predicted"
        )
