"""The headings of `trnflow --help`, and what it prints."""

from __future__ import annotations

from collections.abc import Mapping

HEADINGS = {
    "start": ("new", "preview", "recipes", "settings", "doctor"),
    "run": ("plan", "rehearse", "run", "sweep"),
    "look": ("runs", "status", "logs", "report", "diff", "explain", "ui"),
    "models": ("predict", "get", "publish", "freeze", "promote", "rollback", "champions", "history"),
    "data and store": ("show", "lineage", "verify", "gc", "pin", "unpin", "accept"),
    "every night": ("retrain", "watch", "deploy", "worker", "up", "down", "health"),
    "machines": ("prepare", "jobs", "job"),
    "more": ("config", "schema", "completion"),
}
"""{heading: its commands}: each command stands under one heading."""


def help_page(lines: Mapping[str, str]) -> str:
    """Return the page of `trnflow --help`. lines: what each command does, by its name."""
    parts = [
        "usage: trnflow COMMAND [RECIPE] [section.setting=value ...]",
        "Fine-tune Hugging Face models in cacheable stages. A recipe is a YAML file, or a\n"
        "name that `trnflow recipes` lists. `trnflow COMMAND --help` says more of a command.",
    ]
    for heading, commands in HEADINGS.items():
        # a page of one command's parser has that command alone
        rows = [f"  {name:10}  {lines[name]}" for name in commands if name in lines]
        if rows:
            parts.append("\n".join([heading, *rows]))
    parts.append(
        "  --version   print the version and exit\n"
        "  --help      print this page, or that of a command\n\n"
        "Any setting of a recipe can be overridden: `trnflow run demo train.epochs=3`."
    )
    return "\n\n".join(parts) + "\n"
