"""Whether packages are installed that an environment may lack, without importing them."""

from __future__ import annotations

from importlib.util import find_spec

from trnflow.tasks.errors import MissingDependency

INSTALL_TORCH_XLA = "install torch-xla 2.9 beside torch 2.9"


def require_torch_xla(asked: str, otherwise: str) -> None:
    """Raise MissingDependency without torch_xla. asked: the setting that needs it; otherwise: what to set instead."""
    if find_spec("torch_xla") is None:
        raise MissingDependency(f"{asked}, and torch_xla is not installed", f"{INSTALL_TORCH_XLA}, or set {otherwise}")


def export_runner() -> str:
    """Return the package that runs a StableHLO export: "jax" where installed, else "torch_xla". Raises MissingDependency."""
    for name in ("jax", "torch_xla"):
        if find_spec(name):
            return name
    raise MissingDependency(
        "a StableHLO export is run by jax or torch_xla, and neither is installed",
        f"pip install 'trnflow[jax]', or {INSTALL_TORCH_XLA}",
    )
