"""Whether a chat template wrote the texts that a model learnt."""

from __future__ import annotations

from pathlib import Path

from trnflow.tasks.data.format.config import FormatConfig, is_framed
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE, read_row_format


def framing(folder: Path) -> FormatConfig | None:
    """Return the section `format` of the model in a folder; None if no chat template wrote its texts, or it has no
    `trnflow.json`."""
    if not (folder / ROW_FORMAT_FILE).exists():
        return None
    rows = read_row_format(folder)
    config = FormatConfig.model_validate(rows.settings)
    return config if is_framed(config, {"nested": rows.nested}) else None
