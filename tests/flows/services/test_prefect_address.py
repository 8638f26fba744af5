"""The address of Prefect's API is the one that Prefect itself would use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trnflow.flows.services.prefect_address import LOGGING, configured_url, no_logging_of_this_folder

PROFILES = """
active = "work"
[profiles.work]
PREFECT_API_URL = "http://team/api"
[profiles.other]
PREFECT_API_URL = "http://other/api"
[profiles.local]
"""
SETTINGS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing": ({}, {}),
    "environment": ({".prefect/profiles.toml": PROFILES}, {"PREFECT_API_URL": "http://environment/api"}),
    "active profile": ({".prefect/profiles.toml": PROFILES}, {}),
    "profile by name": ({".prefect/profiles.toml": PROFILES}, {"PREFECT_PROFILE": "other"}),
    "profile without a URL": ({".prefect/profiles.toml": PROFILES}, {"PREFECT_PROFILE": "local"}),
    "profile that is not there": ({".prefect/profiles.toml": PROFILES}, {"PREFECT_PROFILE": "gone"}),
    "home of Prefect": ({"there/profiles.toml": PROFILES}, {"PREFECT_HOME": "there"}),
    "profiles by path": ({"mine.toml": PROFILES}, {"PREFECT_PROFILES_PATH": "mine.toml"}),
    "profiles of a project": ({"mine.toml": PROFILES, "prefect.toml": 'profiles_path = "mine.toml"'}, {}),
    "prefect.toml": ({"prefect.toml": '[api]\nurl = "http://folder/api"', ".prefect/profiles.toml": PROFILES}, {}),
    "pyproject.toml": ({"pyproject.toml": '[tool.prefect.api]\nurl = "http://project/api"'}, {}),
    ".env": ({".env": "PREFECT_API_URL=http://dotenv/api", "prefect.toml": '[api]\nurl = "http://folder/api"'}, {}),
    "no TOML": ({".prefect/profiles.toml": "no toml"}, {}),
}
PREFECT = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from prefect.settings import Settings
found = {}
plain = dict(os.environ)
for name, (folder, environ) in json.loads(sys.argv[1]).items():
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(plain | environ)
    found[name] = Settings().api.url
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of SETTINGS, which is also the user's home."""
    base = tmp_path_factory.mktemp("settings")
    for name, (files, _) in SETTINGS.items():
        (base / name).mkdir()
        for file, text in files.items():
            (base / name / file).parent.mkdir(exist_ok=True)
            (base / name / file).write_text(text)
    return base


def without_prefect(home: Path) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | {"HOME": str(home)}


@pytest.fixture(scope="module")
def prefects(base: Path) -> Callable[[str], str | None]:
    """What Prefect's own settings say of each folder. Its default home is fixed when it is imported, so it is named."""
    cases = {
        name: (str(base / name), {"PREFECT_HOME": str(base / name / ".prefect")} | environ)
        for name, (_, environ) in SETTINGS.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", PREFECT, json.dumps(cases)],
        cwd=base, env=without_prefect(base), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]).get


@pytest.mark.parametrize("name", SETTINGS)
def test_the_address_is_prefects_own(
    name: str, base: Path, prefects: Callable[[str], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("PREFECT_")]:
        monkeypatch.delenv(variable)
    for variable, value in SETTINGS[name][1].items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("HOME", str(base / name))
    monkeypatch.chdir(base / name)
    assert configured_url() == prefects(name)


@pytest.mark.parametrize(("command", "said"), [("ui", "prefect: http://team\n"), ("doctor", "http://team/api\n")])
def test_commands_show_the_server_of_the_users_profile(command: str, said: str, base: Path, tmp_path: Path) -> None:
    environ = without_prefect(base / "active profile") | {"TRNFLOW_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "trnflow", command],
        cwd=base / "active profile",
        env=environ,
        capture_output=True,
        text=True,
    )
    assert said in done.stdout


COMMAND = """
import sys
from trnflow.flows.cli.main import main

sys.argv = ["trnflow", "recipes"]
main()
import prefect.main  # sets up logging
"""
LOGS = """
version: 1
disable_existing_loggers: false
handlers: {canary: {(): os.mkdir, path: ran}}
loggers: {prefect: {handlers: [canary]}}
"""


@pytest.mark.parametrize(
    "name, text",
    [
        ("prefect.toml", '[logging]\nconfig_path = "logs.yml"'),
        ("pyproject.toml", '[tool.prefect]\nhome = "."\n[tool.prefect.logging]\nconfig_path = "logs.yml"'),
        (".env", "PREFECT_LOGGING_SETTINGS_PATH=logs.yml\nPREFECT_LOGGING_CONFIG_PATH=logs.yml"),
    ],
)
def test_a_folder_from_elsewhere_sets_no_logging_which_could_run_code(tmp_path: Path, name: str, text: str) -> None:
    """Data may have come with such a file, and a command is started in their folder."""
    (tmp_path / name).write_text(text)
    (tmp_path / "logs.yml").write_text(LOGS)
    kept = {given: value for given, value in os.environ.items() if not given.startswith("PREFECT")}
    # that the canary sings: without the command line
    for script, ran in (("import prefect.main", True), (COMMAND, False)):
        done = subprocess.run(
            [sys.executable, "-P", "-c", script], cwd=tmp_path, env=kept, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "ran").exists() == ran
        (tmp_path / "ran").rmdir() if ran else None


@pytest.mark.parametrize("name", ["PREFECT_LOGGING_CONFIG_PATH", "PREFECT_LOGGING_SETTINGS_PATH"])
def test_logging_that_the_user_s_own_profile_sets_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A profile that a file of the working directory names is not read."""
    (tmp_path / "profiles.toml").write_text(f'active = "mine"\n[profiles.mine]\n{name} = "/mine.yml"\n')
    (tmp_path / "theirs.toml").write_text(f'active = "theirs"\n[profiles.theirs]\n{name} = "/theirs.yml"\n')
    (tmp_path / "prefect.toml").write_text('profiles_path = "theirs.toml"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {"PREFECT_HOME": str(tmp_path)})
    no_logging_of_this_folder()
    assert {os.environ[each] for each in LOGGING} == {"/mine.yml"}
    for odd in ("profiles = 1", 'active = "mine"\n[profiles]\nmine = 1', ""):
        (tmp_path / "profiles.toml").write_text(odd)
        monkeypatch.setattr(os, "environ", {"PREFECT_HOME": str(tmp_path)})
        no_logging_of_this_folder()
        assert {os.environ[each] for each in LOGGING} == {str(tmp_path / "logging.yml")}
