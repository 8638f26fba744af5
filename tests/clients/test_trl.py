"""Objectives on pairs beside TRL's trainers: the same rows through TRL's own tokenisation, reference and loss, step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients import figures
from tests.clients.conftest import RunClient
from tests.conftest import shared_folder
from tests.helpers.data_stages import Bench
from tests.kinds.preferences import marked_rows_of, packed_preferences, pairs_of, started
from tests.prediction.test_predict import write_rows
from tests.training.run_stage import run_stage, traced_and_trained
from trnflow.tasks.artifact import Input
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
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer
folder, tokens, given = sys.argv[1:]
given = json.loads(open(given).read())
torch.set_num_threads(1)
tokenizer = transformers.AutoTokenizer.from_pretrained(tokens)
kinds = {"dpo": (DPOTrainer, DPOConfig), "orpo": (ORPOTrainer, ORPOConfig), "simpo": (CPOTrainer, CPOConfig),
         "reward": (RewardTrainer, RewardConfig), "kto": (KTOTrainer, KTOConfig)}

def losses(objective, arguments):
    kind, config = kinds[objective]

    class InOrder(kind):
        def get_train_dataloader(self):
            rows = self.train_dataset
            collate = lambda numbers: self.data_collator([rows[number] for number in numbers[0]])
            return torch.utils.data.DataLoader(given["batches"], 1, shuffle=False, collate_fn=collate)

    settings = config(
        "out", max_steps=len(given["batches"]), weight_decay=0.0, logging_steps=1,
        logging_nan_inf_filter=False, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
        gradient_checkpointing=False, **{"per_device_train_batch_size": 1, **arguments},
    )
    loaded = lambda: getattr(transformers, json.load(open(folder + "/config.json"))["architectures"][0]).from_pretrained(folder)
    more = {"ref_model": loaded()} if objective in ("dpo", "kto") else {}
    rows = Dataset.from_list(given["rows"])
    trainer = InOrder(loaded(), args=settings, train_dataset=rows, processing_class=tokenizer, **more)
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]

print(json.dumps([losses(*case) for case in given["cases"]]))
"""
THEIRS_OF_REWARD = {"loss": "loss", "reward_margin": "margin", "reward_accuracy": "accuracy"}
THEIRS = {
    "loss": "loss",
    "reward_chosen": "rewards/chosen",
    "reward_rejected": "rewards/rejected",
    "reward_margin": "rewards/margins",
    "reward_accuracy": "rewards/accuracies",
}


Case = tuple[str, dict[str, Any], dict[str, Any]]
"""Objective, settings by TRL's names, and what TRL needs beside them."""
CASES: list[Case] = [
    ("dpo", {}, {}),
    ("dpo", {"loss_type": "robust", "label_smoothing": 0.1, "beta": 0.3}, {}),
    ("dpo", {"loss_type": "ipo"}, {}),
    ("orpo", {}, {}),
    ("simpo", {"beta": 2.0, "simpo_gamma": 1.0}, {"loss_type": "simpo", "cpo_alpha": 0.0}),
]
THEIRS_OF_KTO = {name: of for name, of in THEIRS.items() if name != "reward_accuracy"} | {"kl": "kl"}
KTO: list[Case] = [
    ("kto", {}, {}),
    ("kto", {"beta": 0.05, "desirable_weight": 0.75, "undesirable_weight": 1.5}, {}),
    ("kto", {"loss_type": "apo_zero_unpaired"}, {"train_sampling_strategy": "sequential"}),
]
REWARDS: list[Case] = [("reward", {}, {}), ("reward", {"center_rewards_coefficient": 0.01}, {})]


@pytest.mark.slow
def test_packed_pairs_give_the_losses_and_rewards_of_trl(tmp_path: Path, run_client: RunClient) -> None:
    packed, rows = packed_preferences(tmp_path / "data", most=MOST)
    assert sum(packed.meta["truncated"].values()) > 10  # as TRL cuts
    inputs: dict[str, Any] = {"model": started(tmp_path / "model", packed), "packed": packed}
    reference = run_stage(compute_reference, _config(*CASES[0]), tmp_path / "reference", **inputs).artifact
    _compare(CASES, THEIRS, inputs, rows, reference, tmp_path, run_client)


@pytest.mark.slow
def test_a_reward_model_gives_the_losses_and_margins_of_trl(tmp_path: Path, run_client: RunClient) -> None:
    longest = 256
    packed, rows = packed_preferences(tmp_path / "data", most=longest, pack={"chunk_length": 2 * longest})
    assert not sum(packed.meta["truncated"].values())  # TRL leaves long pairs out
    model = started(tmp_path / "model", packed, "LlamaForSequenceClassification", num_labels=1)
    _compare(REWARDS, THEIRS_OF_REWARD, {"model": model, "packed": packed}, rows, None, tmp_path, run_client)


@pytest.mark.slow
def test_marked_answers_give_the_losses_rewards_and_kl_of_trl(tmp_path: Path, run_client: RunClient) -> None:
    packed, rows = packed_preferences(
        tmp_path / "data", marked_rows_of(150), {"chunk_length": 256}, 128, task="unpaired_preference"
    )
    inputs: dict[str, Any] = {"model": started(tmp_path / "model", packed), "packed": packed}
    reference = run_stage(compute_reference, _config(*KTO[0]), tmp_path / "reference", **inputs).artifact
    # TRL moves answers on within a batch of this size: that is the whole split here
    group = {"per_device_train_batch_size": len(rows)}
    given = [(name, settings, {**extra, **group}) for name, settings, extra in KTO]
    _compare(given, THEIRS_OF_KTO, inputs, rows, reference, tmp_path, run_client)


ALONE_AND_JOINED = """
import json, sys, transformers
from trl.data_utils import _tokenize, common_prefix_length
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
prompt, answer = sys.argv[2:]
alone, joined = (_tokenize(tokenizer, text)["input_ids"] for text in (prompt, prompt + answer))
print(json.dumps([alone, joined, common_prefix_length(alone, joined)]))
"""


@pytest.mark.slow
def test_where_a_prompt_shares_a_token_with_its_answer_trl_leaves_the_prompts_end_out_and_we_keep_it(
    run_client: RunClient, bench: Bench, tmp_path: Path
) -> None:
    prompt, answer = "Once upon a time there was a ", "dog"
    model = {"source": str(shared_folder() / "assets/stories260K-hf")}
    rows = [{"prompt": prompt, "chosen": answer, "rejected": f"{answer} {number}"} for number in range(4)]
    tokens = bench.tokens(bench.texts(bench.rows(source=write_rows(tmp_path / "rows", rows)), task="preference"), model)
    alone, joined, kept = run_client("trl", ALONE_AND_JOINED, model["source"], prompt, answer, kept=True)
    assert 0 < kept < len(alone)  # TRL warns, and learns joined[kept:] after joined[:kept]
    ids, mask = (
        np.load(tokens.path / f"train/{name}.npy")[: len(joined) + 2].tolist() for name in ("input_ids", "loss_mask")
    )
    assert ids[: len(alone)] == alone and joined[: len(alone)] != alone and mask.index(1) == len(alone)


def _config(objective: str, settings: dict[str, Any], extra: dict[str, Any]) -> TrainConfig:
    return TrainConfig.model_validate({"objective": objective, **COMMON, **settings})


def _compare(
    given: list[Case],
    names: dict[str, str],
    inputs: dict[str, Any],
    rows: list[dict[str, Any]],
    reference: Input | None,
    folder: Path,
    run_client: RunClient,
) -> None:
    """Train each case here and by TRL on the same batches. names: {ours: TRL's} of what is compared at each step."""
    configs, packed = [_config(*case) for case in given], inputs["packed"]
    schedule = make_schedule(configs[0], packed.meta, Split(packed, "train"))
    batches = [pairs_of(packed, schedule.address(step)) for step in range(STEPS)]
    assert max(map(len, batches)) > COMMON["global_batch"]  # several pairs a chunk
    always = {"learning_rate": COMMON["learning_rate"], "max_length": packed.meta["max_length"]}
    cases = [(name, {**always, **settings, **extra}) for name, settings, extra in given]
    if names is THEIRS_OF_KTO:
        desirable = [sum(rows[row]["label"] for row in batch) for batch in batches]
        assert any(0 < count < len(batch) for count, batch in zip(desirable, batches, strict=True))
    (folder / "given.json").write_text(json.dumps({"cases": cases, "batches": batches, "rows": rows}))
    found = run_client("trl", SCRIPT, folder / "model", packed.path / "tokenizer", folder / "given.json", kept=True)
    for number, (config, (name, settings, _), theirs) in enumerate(zip(configs, given, found, strict=True)):
        compared = {"reference": reference} if name in ("dpo", "kto") else {}
        ran = run_stage(traced_and_trained, config, folder / str(number), **inputs, **compared)
        apart = {
            ours: _apart(config, ours, ran.curve(ours), [step.get(their) for step in theirs])
            for ours, their in names.items()
        }
        print(name, settings, apart)
        what = " ".join(["objective", name, *([settings["loss_type"]] if "loss_type" in settings else [])])
        figures.note("trl", what, "loss and rewards, 20 steps", max(apart.values()), "trl")
        assert len(theirs) == STEPS and max(apart.values()) <= 1e-5, name


def _apart(config: TrainConfig, name: str, ours: dict[int, float], theirs: list[float | None]) -> float:
    """Return the largest difference. A batch of one kind of answers has no mean of the other in TRL's log."""
    if name == "kl" and config.loss_type == "apo_zero_unpaired":
        assert {*theirs} == {0.0}  # it is not computed
        return max(map(abs, ours.values()))
    # as it is in the loss: a last digit of the log-probabilities, about -200, is 1.5e-5
    scale = config.beta if name == "kl" else 1.0
    pairs = [(a, b) for a, b in zip(ours.values(), theirs, strict=True) if b is not None]
    assert len(pairs) > STEPS / 2 and (config.objective == "kto" or len(pairs) == STEPS)
    return scale * max(abs(a - b) for a, b in pairs)
