"""Ancestors and descendants of artifacts, and the difference of two runs, from documents alone."""

from __future__ import annotations

from typing import Any

from trnflow.tasks.keys.lineage import Family, compare_runs

DIGESTS = {name: f"sha256:{name[0] * 64}" for name in ("adata", "btokens", "cmodel", "dmodel", "eval", "file")}


def record(stage: str, made: str, inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    document = {
        "inputs": inputs, "params": more.pop("params", {}), "code": more.pop("code", {}), "env": more.pop("env", {}), "accel": {},
    }  # fmt: skip
    told = {"stage": stage, "key": f"{stage}-{made}", "created": "2026-01-01", "attempt": "a"}
    return {**told, "artifact": DIGESTS[made], "document": document, **more}


SOURCE = {"files": [["train.csv", 10, DIGESTS["file"]]]}
RECORDS = [
    record("evaluate", "eval", {"weights": DIGESTS["cmodel"], "packed": DIGESTS["btokens"]}),
    record("train", "dmodel", {"packed": DIGESTS["btokens"]}, params={"learning_rate": 2.0}),
    record("train", "cmodel", {"packed": DIGESTS["btokens"], "model": {"repo": "bert"}}, params={"learning_rate": 1.0}),
    record("tokenize", "btokens", {"texts": DIGESTS["adata"]}),
    record("load", "adata", {"source": SOURCE}),
]


def test_up_leads_to_data_code_and_model() -> None:
    up = Family(RECORDS).up(DIGESTS["cmodel"])
    assert (up["stage"], up["params"]) == ("train", {"learning_rate": 1.0})
    assert up["inputs"]["model"] == {"source": {"repo": "bert"}}
    tokens = up["inputs"]["packed"]
    assert tokens["stage"] == "tokenize"
    assert tokens["inputs"]["texts"]["inputs"]["source"] == {"source": SOURCE}


def test_a_model_trained_on_from_itself_has_a_lineage_as_long_as_its_history() -> None:
    """Of two ways to an earlier model, only the first is followed."""
    many = [record("load", "adata", {"source": SOURCE})]
    models = [f"sha256:{number:064d}" for number in range(40)]
    for number, digest in enumerate(models[1:]):
        inputs = {"packed": DIGESTS["adata"], "weights": models[number], "warm_start": models[number]}
        many.append({**record("train", "cmodel", inputs), "artifact": digest})

    def nodes(node: dict[str, Any]) -> int:
        return 1 + sum(map(nodes, node.get("inputs", {}).values()))

    up = Family(many).up(models[-1])
    assert nodes(up) < 4 * len(models)
    assert up["inputs"]["warm_start"]["repeated"] and not up["inputs"]["weights"]["repeated"]


def test_down_leads_to_all_that_was_made_of_it() -> None:
    down = Family(RECORDS).down(DIGESTS["adata"])
    assert [node["stage"] for node in down] == ["tokenize"]
    assert [(node["stage"], node["artifact"]) for node in down[0]["down"]] == [
        ("evaluate", DIGESTS["eval"]),
        ("train", DIGESTS["dmodel"]),
        ("train", DIGESTS["cmodel"]),
    ]
    assert Family(RECORDS).down(DIGESTS["eval"]) == []


def test_a_file_of_the_data_leads_down_too() -> None:
    assert [node["stage"] for node in Family(RECORDS).down(DIGESTS["file"])] == ["load"]


def test_an_artifact_without_a_record_is_said_to_be_so() -> None:
    family = Family(RECORDS[:-1])
    assert family.up(DIGESTS["adata"]) == {"artifact": DIGESTS["adata"], "stage": None}
    assert family.up(DIGESTS["btokens"])["inputs"]["texts"]["stage"] is None


def test_equal_bytes_made_twice_name_every_key() -> None:
    again = record("tokenize", "btokens", {"texts": DIGESTS["adata"]}, key="newer")
    up = Family([again, *RECORDS]).up(DIGESTS["btokens"])
    assert (up["key"], up["also"]) == ("newer", ["tokenize-btokens"])


def test_a_stage_that_returns_its_input_does_not_turn_in_circles() -> None:
    circle = record("copy", "adata", {"texts": DIGESTS["adata"]})
    assert [node["down"] for node in Family([circle]).down(DIGESTS["adata"])] == [[]]
    assert Family([circle]).up(DIGESTS["adata"])["inputs"]["texts"]["stage"] is None


def run(**more: Any) -> dict[str, Any]:
    stages = [
        {"stage": "load_data", "key": "k1", "artifact": "A", "metrics": {}},
        {"stage": "train", "key": "k2", "artifact": "B", "metrics": {"loss": 0.5, "by_class": {"x": 1.0}}},
    ]
    host = {"name": "h", "python": "3.11"}
    return {"resolved": {"train": {"learning_rate": 1.0}}, "stages": stages, "host": host, **more}


def test_the_difference_of_two_runs_value_by_value() -> None:
    old = {
        "load_data": record("load_data", "adata", {"source": {"digest": "x"}}, code={"tasks.text": "1"})["document"],
        "train": record("train", "cmodel", {"rows": "one"}, code={"tasks.text": "1"}, env={"torch": "2.8"})["document"],
    }
    new = {
        "load_data": record("load_data", "adata", {"source": {"digest": "y"}}, code={"tasks.text": "2"})["document"],
        "train": record("train", "cmodel", {"rows": "two"}, code={"tasks.text": "2"}, env={"torch": "2.9"})["document"],
    }
    stages = [
        {"stage": "load_data", "key": "k3", "artifact": "C", "metrics": {}},
        {"stage": "train", "key": "k4", "artifact": "B", "metrics": {"loss": 0.25, "by_class": {"x": 1.0}, "f1": 0.5}},
    ]
    after = run(resolved={"train": {"learning_rate": 3.0}}, stages=stages, host={"name": "g", "python": "3.11"})
    assert compare_runs(run(), after, (old, new)) == {
        "settings": [{"name": "train.learning_rate", "before": 1.0, "after": 3.0}],
        "data": [{"name": "source.digest", "before": "x", "after": "y", "stages": ["load_data"]}],
        "code": [{"name": "tasks.text", "before": "1", "after": "2", "stages": ["load_data", "train"]}],
        "env": [
            {"name": "torch", "before": "2.8", "after": "2.9", "stages": ["train"]},
            {"name": "host.name", "before": "h", "after": "g", "stages": []},
        ],
        "artifacts": [{"stage": "load_data", "before": "A", "after": "C"}],
        "metrics": [
            {"stage": "train", "name": "loss", "before": 0.5, "after": 0.25},
            {"stage": "train", "name": "f1", "before": None, "after": 0.5},
        ],
        "unknown": [],
    }


def test_equal_runs_do_not_differ_and_records_that_are_gone_are_named() -> None:
    found = compare_runs(run(), run(), ({}, {}))
    assert found.pop("unknown") == ["load_data", "train"]
    assert not any(found.values())
