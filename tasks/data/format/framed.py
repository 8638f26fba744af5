"""The section `format` of a trained model, and whether a chat template wrote the texts that it learnt."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from trnflow.tasks.data.format.config import FormatConfig, is_framed
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE, RowFormat, damaged, read_row_format


def framing(folder: Path) -> FormatConfig | None:
    """Return the section `format` of the model in a folder; None if no chat template wrote its texts, or it has no
    `trnflow.json`."""
    if not (folder / ROW_FORMAT_FILE).exists():
        return None
    rows = read_row_format(folder)
    config = settings_of(rows)
    return config if is_framed(config, {"nested": rows.nested}) else None


def settings_of(rows: RowFormat) -> FormatConfig:
    """Return the section `format` that `trnflow.json` holds. Raises ModelError if it is none."""
    try:
        return FormatConfig.model_validate(rows.settings)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, ("rows", "settings", *first["loc"])))
        raise damaged(ROW_FORMAT_FILE, f"{at}: {first['msg']}") from error
