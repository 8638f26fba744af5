"""Objectives on pairs beside TRL's trainers: the same rows through TRL's own tokenisation, reference and loss, step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import figures
from tests.clients.conftest import RunClient
from tests.kinds.preferences import packed_preferences, pairs_of, started
from tests.training.run_stage import run_stage, traced_and_trained
from trnflow.tasks.compute_reference import compute_reference
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.fit import make_schedule

STEPS, MOST = 20, 64
COMMON: dict[str, Any] = {
    "global_batch": 4, "learning_rate": 3e-3, "weight_decay": 0.0, "log_every": 1, "max_steps": STEPS, "seed": 5,
    "last_batch": "drop", "engine": "native",
}  # fmt: skip
SCRIPT = """
import json, sys, torch, transformers
from datasets import Dataset
folder, tokens, given = sys.argv[1:]
given = json.loads(open(given).read())
torch.set_num_threads(1)
tokenizer = transformers.AutoTokenizer.from_pretrained(tokens)
if given["trainer"] == "dpo":
    from trl import DPOConfig as Config, DPOTrainer as Trainer
elif given["trainer"] == "orpo":
    from trl.experimental.orpo import ORPOConfig as Config, ORPOTrainer as Trainer
else:
    from trl.experimental.cpo import CPOConfig as Config, CPOTrainer as Trainer

class InOrder(Trainer):
    def get_train_dataloader(self):
        rows = self.train_dataset
        collate = lambda numbers: self.data_collator([rows[number] for number in numbers[0]])
        return torch.utils.data.DataLoader(given["batches"], 1, shuffle=False, collate_fn=collate)

arguments = Config(
    "out", max_steps=len(given["batches"]), per_device_train_batch_size=1, weight_decay=0.0, logging_steps=1,
    logging_nan_inf_filter=False, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
    gradient_checkpointing=False, **given["arguments"],
)
model = transformers.AutoModelForCausalLM.from_pretrained(folder)
more = {"ref_model": transformers.AutoModelForCausalLM.from_pretrained(folder)} if given["trainer"] == "dpo" else {}
trainer = InOrder(
    model, args=arguments, train_dataset=Dataset.from_list(given["rows"]), processing_class=tokenizer, **more
)
trainer.train()
print(json.dumps([entry for entry in trainer.state.log_history if "loss" in entry]))
"""
THEIRS = {
    "loss": "loss",
    "reward_chosen": "rewards/chosen",
    "reward_rejected": "rewards/rejected",
    "reward_margin": "rewards/margins",
    "reward_accuracy": "rewards/accuracies",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "settings", "extra"),
    [
        ("dpo", {}, {}),
        ("dpo", {"loss_type": "robust", "label_smoothing": 0.1, "beta": 0.3}, {}),
        ("dpo", {"loss_type": "ipo"}, {}),
        ("orpo", {}, {}),
        ("simpo", {"beta": 2.0, "simpo_gamma": 1.0}, {"loss_type": "simpo", "cpo_alpha": 0.0}),
    ],
)
def test_packed_pairs_give_the_losses_and_rewards_of_trl(
    trainer: str, settings: dict[str, Any], extra: dict[str, Any], tmp_path: Path, run_client: RunClient
) -> None:
    packed, rows = packed_preferences(tmp_path / "data", most=MOST if trainer == "dpo" else 128)
    source, config = (
        started(tmp_path / "model", packed),
        TrainConfig.model_validate({"objective": trainer, **COMMON, **settings}),
    )
    given: dict[str, Any] = {"model": source, "packed": packed}
    if trainer == "dpo":
        assert sum(packed.meta["truncated"].values()) > 10  # as TRL cuts
        given["reference"] = run_stage(compute_reference, config, tmp_path / "reference", **given).artifact
    ran = run_stage(traced_and_trained, config, tmp_path / "run", **given)
    schedule = make_schedule(config, packed.meta, Split(packed, "train"))
    batches = [pairs_of(packed, schedule.address(step)) for step in range(STEPS)]
    assert max(map(len, batches)) > COMMON["global_batch"]  # several pairs a chunk
    arguments = {
        "learning_rate": COMMON["learning_rate"],
        "max_length": MOST if trainer == "dpo" else 128,
        **settings,
        **extra,
    }
    document = {"trainer": trainer, "arguments": arguments, "batches": batches, "rows": rows}
    (tmp_path / "given.json").write_text(json.dumps(document))
    theirs = run_client("trl", SCRIPT, tmp_path / "model", packed.path / "tokenizer", tmp_path / "given.json")
    apart = {
        ours: max(abs(a - b[name]) for a, b in zip(ran.curve(ours).values(), theirs, strict=True))
        for ours, name in THEIRS.items()
    }
    print(trainer, settings, apart)
    figures.note("trl", f"objective {trainer} {settings}", "loss and rewards of 20 steps", max(apart.values()), "trl")
    assert max(apart.values()) <= 1e-5
