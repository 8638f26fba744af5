"""A prefect.yaml or a TRNFLOW_NOTIFY that is wrong is refused before a server starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from trnflow.flows.services.deploy import _refused, deploy
from trnflow.flows.services.deployed_recipes import check_recipes
from trnflow.flows.services.notification import VARIABLE
from trnflow.flows.sweeps.plan import read_plan
from trnflow.tasks.errors import ConfigError

DEPLOYMENTS = """
name: mine
deployments:
  - name: retrain
    entrypoint: trnflow.flows.deployments.retrain
    parameters: {parameters}
    schedules: [{{cron: "0 3 * * *", parameters: {scheduled}}}]
"""


def project(folder: Path, parameters: str, scheduled: str = "{}") -> Path:
    text = DEPLOYMENTS.replace("{parameters}", parameters).replace("{scheduled}", scheduled).replace("{{", "{")
    (folder / "prefect.yaml").write_text(text.replace("}}", "}"))
    return folder


@pytest.mark.parametrize(
    ("parameters", "scheduled", "message"),
    [
        ("{recipe: gone}", "{}", "prefect.yaml: deployment retrain: there is no recipe gone"),
        (
            "{recipe: demo}",
            "{recipe: gone.yaml}",
            "prefect.yaml: deployment retrain: there is no recipe file gone.yaml",
        ),
        ("{recipe: demo, overrides: [data.limt=5]}", "{}", "deployment retrain: .*data.limt"),
    ],
)
def test_a_recipe_that_can_not_be_read_is_named(tmp_path: Path, parameters: str, scheduled: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        deploy(tmp_path / "home", project(tmp_path, parameters, scheduled))
    assert not (tmp_path / "home").exists()


def test_each_recipe_of_a_deployment_has_its_name() -> None:
    text = (DEPLOYMENTS.replace("{{", "{").replace("}}", "}")
            .replace("{parameters}", '{recipe: demo, overrides: ["name=one"]}')
            .replace("{scheduled}", '{overrides: ["name=two"]}'))  # fmt: skip
    document = yaml.safe_load(text)
    assert check_recipes(document, "x") == {("demo", "name=one"): "one", ("demo", "name=two"): "two"}
    document["deployments"][0]["parameters"]["recipe"] = "{{ $RECIPE }}"  # Prefect fills it in
    assert check_recipes(document, "x") == {}


def test_the_default_parameters_suit_every_recipe() -> None:
    """Prefect fills in what a run leaves out, also for a run of another recipe."""
    document = yaml.safe_load((Path(__file__).parents[3] / "prefect.yaml").read_text())
    given = {one["name"]: one["parameters"] for one in document["deployments"]}
    assert given.pop("watch") == {"recipe": "demo", "overrides": [], "every": 300}
    assert given.keys() == {"finetune", "prepare", "retrain", "sweep"}
    assert all(parameters == {"recipe": "demo", "overrides": []} for parameters in given.values())


def test_the_demo_says_what_its_sweep_varies() -> None:
    plan = read_plan("demo", [])
    assert [one.setting for one in plan.space] == ["train.learning_rate"]
    assert plan.recipe.sweep.trials == 6


@pytest.mark.parametrize("value", ["hooks.example.com/t0ken-8x9Q", "https:// /t0ken-8x9Q", "Slack t0ken-8x9Q"])
def test_an_address_that_is_none_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ConfigError, match="TRNFLOW_NOTIFY is neither") as refused:
        deploy(tmp_path / "home", project(tmp_path, "{recipe: demo}"))
    assert "t0ken" not in f"{refused.value} {refused.value.fix}"
    assert VARIABLE not in os.environ
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "printed", ["ValueError: no such pool", "Traceback:\n  a line\n  another\nValueError: no such pool \n"]
)
def test_a_refusal_is_the_last_line_that_prefect_printed(tmp_path: Path, printed: str) -> None:
    refused = _refused(tmp_path, tmp_path / "prefect.yaml", printed)
    assert refused.message == f"Prefect refused a deployment of {tmp_path}/prefect.yaml: ValueError: no such pool"
