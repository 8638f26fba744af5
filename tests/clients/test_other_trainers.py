"""A config of axolotl or LLaMA-Factory, trained by its own program and by the recipe that `trnflow new` makes of it: rows, token
ids, loss masks, updates, learning rates and losses."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.clients.conftest import RunClient
from tests.conftest import shared_folder
from tests.helpers.chats import tokenizer_in
from tests.helpers.command_line import InProcessShell

Rows = Counter[tuple[tuple[int, ...], tuple[int, ...]]]
"""(token ids, loss mask) of rows, and how often."""

SMALL = "assets/stories260K-hf"
LOGS = ".trnflow/runs/*/events.jsonl"
COUNT = 80
SCRIPT = """
import json, os, sys
import transformers, yaml

class Seen:
    trainer = None

train = transformers.Trainer.train

def watched(self, *arguments, **named):
    Seen.trainer = self
    return train(self, *arguments, **named)

transformers.Trainer.train = watched
program, folder, *names = sys.argv[1:]
os.chdir(folder)
if program == "axolotl":
    from axolotl.cli.args import TrainerCliArgs
    from axolotl.cli.config import load_cfg
    from axolotl.cli.train import do_train
    begin = lambda file: do_train(load_cfg(file), TrainerCliArgs())
else:
    from llamafactory.train.tuner import run_exp
    begin = lambda file: run_exp(yaml.safe_load(open(file)))
for name in names:
    begin(name + ".yml")
    trainer = Seen.trainer
    rows = [[{key: value for key, value in row.items() if "image" not in key} for row in some or []]
            for some in (trainer.train_dataset, trainer.eval_dataset)]
    steps = [entry for entry in trainer.state.log_history if "learning_rate" in entry]
    rates, losses = ([entry[name] for entry in steps] for name in ("learning_rate", "loss"))
    json.dump({"updates": trainer.state.global_step, "rates": rates, "losses": losses, "train": rows[0], "held": rows[1]},
              open(name + ".theirs", "w"), default=str)
print()
print(json.dumps(names))
"""

BASE = {"logging_steps": 1, "learning_rate": 1e-3, "gradient_accumulation_steps": 2}
AXOLOTL: dict[str, Any] = {
    **BASE, "base_model": "./chatty", "sequence_len": 512, "micro_batch_size": 2, "optimizer": "adamw_torch", "bf16": False,
    "dataset_processes": 1, "num_epochs": 1, "lr_scheduler": "cosine", "warmup_ratio": 0.1,
    # of a GPU
    "flash_attention": False, "lora_mlp_kernel": False, "lora_qkv_kernel": False, "lora_o_kernel": False,
}  # fmt: skip
LLAMA_FACTORY: dict[str, Any] = {
    **BASE, "model_name_or_path": "chatty", "do_train": True, "dataset_dir": "data", "cutoff_len": 512, "report_to": "none",
    "per_device_train_batch_size": 2, "num_train_epochs": 1.0, "lr_scheduler_type": "cosine", "template": "qwen3_nothink",
}  # fmt: skip
WHOLE = 5
"""Epochs of a batch that holds all rows: their order, which each program draws by itself, does not change a loss."""
LORA = {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True}
PLAIN = {"base_model": "./plain", "special_tokens": {"pad_token": "</s>"}}
TALKS = {"field_messages": "conversations", "message_property_mappings": {"role": "from", "content": "value"}}


def rows_in(name: str, **entry: Any) -> dict[str, Any]:
    return {"datasets": [{"path": f"data/{name}.jsonl", "ds_type": "json", "split": "train", **entry}]}


CONFIGS: dict[str, dict[str, dict[str, Any]]] = {
    "axolotl": {
        "a-chat": {
            **AXOLOTL, **rows_in("talks", type="chat_template", **TALKS), "chat_template": "chatml", "num_epochs": 2,
            "micro_batch_size": 4,
        },
        "a-alpaca": {
            **AXOLOTL, **rows_in("alpaca", type="alpaca"), "val_set_size": 0.1, "max_steps": 20, "warmup_steps": 5,
            "warmup_ratio": None, "lr_scheduler": "linear",
        },
        "a-completion": {**AXOLOTL, **PLAIN, **rows_in("texts", type="completion")},
        "a-packed": {
            **AXOLOTL, **LORA, **rows_in("even", type="chat_template"), "chat_template": "tokenizer_default",
            "sample_packing": True, "pad_to_sequence_len": True, "num_epochs": 2, "warmup_ratio": 0.2,
        },
        "a-qlora": {
            **AXOLOTL, **LORA, **rows_in("alpaca", type="alpaca"), "adapter": "qlora", "load_in_4bit": True,
            "val_set_size": 0.2, "max_steps": 12, "lr_scheduler": "constant_with_warmup", "warmup_steps": 3, "warmup_ratio": None,
        },
        "a-dpo": {
            **AXOLOTL, **rows_in("pairs", type="chat_template.default", field_messages="messages"), "rl": "dpo",
            "chat_template": "chatml",
        },
        "a-whole": {
            **AXOLOTL, **rows_in("alpaca", type="alpaca"), "micro_batch_size": COUNT // 2, "num_epochs": WHOLE,
            "warmup_ratio": None, "warmup_steps": 0,
        },
        "a-kto": {
            **AXOLOTL, **LORA, **rows_in("marks", type="chatml.argilla_chat"), "rl": "kto", "rl_beta": 0.2,
            "chat_template": "chatml", "remove_unused_columns": False,
        },
    },
    "llamafactory": {
        "l-chat": {
            **LLAMA_FACTORY, "stage": "sft", "finetuning_type": "full", "dataset": "talks", "num_train_epochs": 2.0,
            "per_device_train_batch_size": 4, "warmup_ratio": 0.1,
        },
        "l-alpaca": {
            **LLAMA_FACTORY, "stage": "sft", "finetuning_type": "lora", "dataset": "alpaca", "template": "chatml",
            "lr_scheduler_type": "linear", "warmup_steps": 4, "max_steps": 20,
        },
        "l-whole": {
            **LLAMA_FACTORY, "stage": "sft", "finetuning_type": "full", "dataset": "alpaca", "num_train_epochs": WHOLE,
            "per_device_train_batch_size": COUNT // 2,
        },
        "l-texts": {
            **LLAMA_FACTORY, "stage": "pt", "finetuning_type": "full", "dataset": "texts", "packing": False, "warmup_ratio": 0.1,
        },
        "l-packed": {
            **LLAMA_FACTORY, "stage": "sft", "finetuning_type": "lora", "quantization_bit": 4, "dataset": "even",
            "packing": True, "neat_packing": True, "num_train_epochs": 2.0,
        },
        "l-dpo": {
            **LLAMA_FACTORY, "stage": "dpo", "finetuning_type": "lora", "pref_beta": 0.2, "dataset": "pairs", "val_size": 0.1,
            "num_train_epochs": 2.0, "max_steps": 20,
        },
        "l-kto": {
            **LLAMA_FACTORY, "stage": "kto", "finetuning_type": "lora", "lora_target": "q_proj,v_proj",
            "dataset": "marks-sharegpt",
        },
    },
}  # fmt: skip
"""{program: {name: config}}. 80 rows make 20 updates an epoch, 10 with micro-batches of 4."""

TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = "the red big dog cat ran to tree and saw happy little girl boy box ball play day sun once upon time was Lily Tom"
USUAL = {"human": "user", "gpt": "assistant", "system": "system"}


def make_models(folder: Path) -> None:
    """Write the small Llama twice: as it is, and with a tokenizer of bytes, as tokenizers of chats are."""
    import transformers

    plain = transformers.AutoTokenizer.from_pretrained(shared_folder() / SMALL)
    model = transformers.LlamaForCausalLM.from_pretrained(shared_folder() / SMALL)
    chatty = transformers.AutoTokenizer.from_pretrained(tokenizer_in(folder / "chatty", TEMPLATE))
    chatty.eos_token, chatty.pad_token = "<|im_end|>", "</s>"
    for name, tokenizer in (("plain", plain), ("chatty", chatty)):
        tokenizer.save_pretrained(folder / name)
        model.config.eos_token_id, model.config.bos_token_id = tokenizer.eos_token_id, tokenizer.bos_token_id
        model.save_pretrained(folder / name)


def make_rows(folder: Path) -> None:
    """Write the rows that the configs name, and what LLaMA-Factory must know of them."""
    drawn = random.Random(3)

    def words(fewest: int, most: int) -> str:
        return " ".join(drawn.choices(TEXT.split(), k=drawn.randint(fewest, most)))

    def turn(role: str, text: str) -> dict[str, str]:
        return {"from": role, "value": text}

    def turns(most: int) -> list[dict[str, str]]:
        rounds = [turn(role, words(2, 8)) for _ in range(drawn.randint(1, most)) for role in ("human", "gpt")]
        return [*([turn("system", words(3, 6))] if drawn.random() < 0.3 else []), *rounds]

    def usual(talk: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{"role": USUAL[each["from"]], "content": each["value"]} for each in talk]

    talks = [turns(3) for _ in range(COUNT)]
    pairs = [(turn("human", words(3, 9)), turn("gpt", words(3, 9)), turn("gpt", words(3, 9))) for _ in range(COUNT)]
    # of 127 tokens each, of which four fill a chunk (LLaMA-Factory keeps a position free), however they are packed
    even = [[turn("human", words(30, 30)[:47]), turn("gpt", words(40, 40)[:59])] for _ in range(COUNT)]
    even = [[turn(each["from"], each["value"].replace(" ", "_")) for each in talk] for talk in even]
    for name, rows in {
        "talks": [{"conversations": talk} for talk in talks],
        "even": [{"messages": usual(talk)} for talk in even],
        "even-sharegpt": [{"conversations": talk} for talk in even],
        "alpaca": [
            {"instruction": words(3, 9), "input": words(2, 6) if at % 3 else "", "output": words(2, 20)}
            for at in range(COUNT)
        ],
        "texts": [{"text": words(5, 80)} for _ in range(COUNT)],
        "pairs": [
            {"messages": usual([asked]), "chosen": usual([good])[0], "rejected": usual([bad])[0]}
            for asked, good, bad in pairs
        ],
        "pairs-sharegpt": [{"conversations": [asked], "chosen": good, "rejected": bad} for asked, good, bad in pairs],
        "marks": [
            {"completion": usual([asked, good]), "label": at % 3 > 0} for at, (asked, good, _) in enumerate(pairs)
        ],
        "marks-sharegpt": [
            {"conversations": [asked, good], "kto_tag": at % 3 > 0} for at, (asked, good, _) in enumerate(pairs)
        ],
    }.items():
        (folder / f"data/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    talk = {"formatting": "sharegpt", "columns": {"messages": "conversations"}}
    ranked = {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
    info = {
        "talks": {"file_name": "talks.jsonl", **talk}, "even": {"file_name": "even-sharegpt.jsonl", **talk},
        "alpaca": {"file_name": "alpaca.jsonl"}, "texts": {"file_name": "texts.jsonl", "columns": {"prompt": "text"}},
        "pairs": {"file_name": "pairs-sharegpt.jsonl", "formatting": "sharegpt", "ranking": True, "columns": ranked},
        "marks-sharegpt": {
            "file_name": "marks-sharegpt.jsonl", "formatting": "sharegpt",
            "columns": {"messages": "conversations", "kto_tag": "kto_tag"},
        },
    }  # fmt: skip
    (folder / "data/dataset_info.json").write_text(json.dumps(info))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    (folder / "data").mkdir()
    make_models(folder)
    make_rows(folder)
    for configs in CONFIGS.values():
        for name, config in configs.items():
            given = {key: value for key, value in config.items() if value is not None}
            (folder / f"{name}.yml").write_text(yaml.safe_dump({**given, "output_dir": f"./out-{name}"}))
    return folder


@pytest.fixture(scope="module")
def theirs(house: Path, run_client: RunClient) -> dict[str, Any]:
    """{config: what its program did}."""
    quiet = {"AXOLOTL_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""}
    for program, configs in CONFIGS.items():
        run_client(program, SCRIPT, program, house, *configs, **quiet)
    return {
        name: json.loads((house / f"{name}.theirs").read_text()) for configs in CONFIGS.values() for name in configs
    }


def ours(house: Path, name: str) -> dict[str, Any]:
    """Translate a config and train, by commands. Returns what `theirs` has."""
    shell = InProcessShell(house)
    done = shell("new", f"{name}.yml")
    assert done.returncode == 0, done.stderr
    before = {*house.glob(LOGS)}
    done = shell("run", f"{name}.yaml", "--direct", "--until", "train", "tracking.enabled=false")
    assert done.returncode == 0, done.stderr
    (log,) = {*house.glob(LOGS)} - before
    events = map(json.loads, log.read_text().splitlines())
    values = [event["values"] for event in events if event["event"] == "metrics" and event["stage"] == "train"]
    steps = [each for each in values if "learning_rate" in each]
    assert shell("get", f"{name}.yaml", "tokenize_text", f"{name}-tokens").returncode == 0
    folders = [house / f"{name}-tokens" / split for split in ("train", "validation")]
    return {
        "rates": [each["learning_rate"] for each in steps],
        "losses": [each["loss"] for each in steps],
        "rows": Counter(row for folder in folders if folder.exists() for row in our_rows(folder, name)),
    }


def our_rows(folder: Path, name: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the rows of a split, both answers of a pair apart; of marked ones the second is another row's, for the KL."""
    ids, mask = (np.load(folder / f"{kind}.npy") for kind in ("input_ids", "loss_mask"))
    file, ends = folder / "token_types.npy", np.load(folder / "offsets.npy")
    types = np.load(file) if file.exists() else np.zeros(len(ids), np.uint8)
    for start, end in pairwise(ends.tolist()):
        for kind in (0,) if name.endswith("kto") else np.unique(types[start:end]):
            kept = np.flatnonzero(types[start:end] == kind) + start
            yield tuple(ids[kept].tolist()), (0, *mask[kept][1:].tolist())


def rows_of(ids: list[int], labels: list[int], positions: list[int] | None = None) -> list[Any]:
    """Return (ids, loss mask) of the rows of a chunk, without padding. The first token has no loss."""
    mask = [int(label != -100) for label in labels]
    starts = [at for at, position in enumerate(positions or [0]) if position == 0]
    parts = [(ids[start:end], mask[start:end]) for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
    return [(tuple(tokens), (0, *flags[1:])) for tokens, flags in parts if len(tokens) > 1]


def their_rows(found: dict[str, Any]) -> Rows:
    rows: list[Any] = []
    for row in found["train"] + found["held"]:
        if "chosen_input_ids" in row:  # LLaMA-Factory's
            for which in ("chosen", "rejected"):
                rows += rows_of(row[f"{which}_input_ids"], row[f"{which}_labels"])
        elif "prompt_ids" in row:  # TRL's
            prompt = row["prompt_ids"]
            for answer in ("chosen_ids", "rejected_ids", "completion_ids"):
                if answer in row:
                    rows += rows_of(prompt + row[answer], [-100] * len(prompt) + row[answer])
        else:
            rows += rows_of(row["input_ids"], row.get("labels", row["input_ids"]), row.get("position_ids"))
    return Counter(rows)


Row = tuple[tuple[int, ...], tuple[int, ...]]
BOS, END, LINE_BREAK = 0, 3, 202
"""Ids of the tokenizer in `chatty`."""


def without_line_breaks(row: Row) -> Row:
    """Axolotl trains on the token that ends a turn, and not on what its template writes behind."""
    ids, mask = row
    behind = [at > 0 and (ids[at - 1], ids[at]) == (END, LINE_BREAK) for at in range(len(ids))]
    return ids, tuple(0 if skipped else flag for skipped, flag in zip(behind, mask, strict=True))


def framed(row: Row) -> Row:
    """For `rl` axolotl writes nothing behind that token, and its tokenizer adds what it puts before a text."""
    ids, mask = row
    assert (ids[-2:], ids[0]) == ((END, LINE_BREAK), 2)
    return (BOS, *ids[:-1]), (0, *mask[:-1])


def without_bos(row: Row) -> Row:
    """LLaMA-Factory writes none before a text of `stage: pt`."""
    ids, mask = row
    assert ids[0] == BOS
    return ids[1:], (0, *mask[2:])


DIFFERENT: dict[str, tuple[Callable[[Row], Row], str]] = {
    "a-chat": (without_line_breaks, "also a line break behind its end token; there that token alone"),
    "a-packed": (without_line_breaks, "also a line break behind its end token; there that token alone"),
    "a-dpo": (framed, "rl: there the tokenizer's bos stands before each text, also where the template writes none"),
    "a-kto": (framed, "rl: there the tokenizer's bos stands before each text, also where the template writes none"),
    "l-texts": (without_bos, "stage: pt: a text begins with the tokenizer's first token (bos), if it has one"),
}
"""{config: (from our row to theirs, what `new` says of it)}."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for configs in CONFIGS.values() for name in configs])
def test_the_recipe_trains_as_the_config_does_there(house: Path, theirs: dict[str, Any], name: str) -> None:
    here, there = ours(house, name), theirs[name]
    assert len(here["rates"]) == there["updates"]
    assert here["rates"] == pytest.approx(there["rates"], abs=1e-12)
    change, said = DIFFERENT.get(name, (lambda row: row, ""))
    assert said in " ".join((house / f"{name}.yaml").read_text().splitlines())
    rows = Counter({change(row): count for row, count in here["rows"].items()})
    expected = their_rows(there)
    pairs = 2 if name.endswith("dpo") else 1
    assert rows == expected and sum(rows.values()) == pairs * COUNT
    assert sum(map(sum, (mask for _, mask in rows))) > 10 * COUNT  # and learns from them
    if name.endswith("whole"):
        assert here["losses"] == pytest.approx(there["losses"], rel=1e-5)
        assert there["losses"][0] > 2 * there["losses"][-1]
