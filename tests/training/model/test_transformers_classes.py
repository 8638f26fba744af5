"""What is read of the code of classes, without importing it."""

from __future__ import annotations

from pathlib import Path

from trnflow.tasks.training.model.transformers_classes import UNKNOWN, class_code

CODE = """
class Base(PreTrainedConfig):
    attribute_map = {"n_positions": "positions", "n_layer": "layers"}
    layers: int = 12
    width = 8 * 96

class Mine(Base):
    attribute_map = {"n_positions": "max_positions"}
    max_positions: int = 1024
"""


def test_a_class_changes_the_names_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "configuration_mine.py").write_text(CODE)
    mine = class_code(tmp_path / "configuration_mine.py", "Mine")
    assert mine.derives_from("PreTrainedConfig") and mine.fields == {"layers", "max_positions"}
    assert mine.other_names == {"n_positions": "max_positions", "n_layer": "layers"}
    assert (mine.of({}, "n_positions"), mine.of({"max_positions": 64}, "n_positions")) == (1024, 64)
    assert (mine.of({"n_layer": 6}, "n_layer"), mine.value("width"), mine.value("depth")) == (6, UNKNOWN, None)
