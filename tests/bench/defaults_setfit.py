"""Train SetFit in an environment of its own: `python defaults_setfit.py ASKED.json TOLD.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(asked_file: str, told_file: str) -> None:
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    asked = json.loads(Path(asked_file).read_text())
    several = {"multi_target_strategy": "one-vs-rest"} if asked["several"] else {}
    model = SetFitModel.from_pretrained(asked["base"], **several)
    model.model_body.max_seq_length = asked["length"]
    arguments = TrainingArguments(
        output_dir=asked["to"], num_iterations=20, seed=asked["seed"], report_to="none", save_strategy="no"
    )
    rows = Dataset.from_dict({"text": asked["train"], "label": asked["labels"]})
    Trainer(model, arguments, train_dataset=rows).train()
    found = model.predict(asked["test"], as_numpy=True).tolist()
    names = asked["names"]
    told = [[names[at] for at, has in enumerate(row) if has] if asked["several"] else names[int(row)] for row in found]
    Path(told_file).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
