"""Paths of a recipe: relative ones are joined to its folder, `~` is the user's home, URLs stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.tasks.sources.paths import located, located_database


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("shelf", "/recipes/shelf"),
        ("/shelf", "/shelf"),
        ("~/shelf", "/home/me/shelf"),
        ("s3://shelf/a", "s3://shelf/a"),
    ],
)
def test_a_root_is_of_the_recipe_s_folder_or_of_the_user_s_home(
    text: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert located(text, Path("/recipes")) == wanted


@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("sqlite:///mlflow.db", "sqlite:////recipes/mlflow.db"),
        ("sqlite:////all/mlflow.db", "sqlite:////all/mlflow.db"),
        ("file:mlruns", "file:///recipes/mlruns"),
        ("file:///all/mlruns", "file:///all/mlruns"),
        ("mlruns", "/recipes/mlruns"),
        ("~/mlruns", "/home/me/mlruns"),
        ("http://localhost:5000", "http://localhost:5000"),
        ("databricks", "databricks"),
    ],
)
def test_a_database_of_mlflow_is_of_the_recipe_s_folder(uri: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert located_database(uri, Path("/recipes")) == wanted
