"""Whether packages are installed that an environment may lack, without importing them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from trnflow.tasks.errors import MissingDependency

INSTALL_TORCH_XLA = "install torch-xla 2.9 beside torch 2.9 (`make setup`, or the extra xla)"


def torch_xla_lacks() -> str:
    """Say why engine xla and StableHLO exports can't run here; "" where they can."""
    if find_spec("torch_xla") is None:
        return "torch_xla is not installed"
    xla, torch = _release("torch-xla"), _release("torch")
    # another torch's symbols: its import ends in a line of C++
    return "" if xla == torch else f"torch_xla {xla} is installed beside torch {torch}, which it can't load"


def _release(package: str) -> str:
    """Return a package's version as major.minor."""
    try:
        return ".".join(version(package).split(".")[:2])
    except PackageNotFoundError:
        return "(not installed)"


def require_torch_xla(asked: str, otherwise: str) -> None:
    """Raise MissingDependency without torch_xla. asked: the setting that needs it; otherwise: what to set instead."""
    if lacks := torch_xla_lacks():
        raise MissingDependency(f"{asked}, and {lacks}", f"{INSTALL_TORCH_XLA}, or set {otherwise}")


def require_bitsandbytes(asked: str) -> None:
    """Raise MissingDependency without bitsandbytes. asked: the setting that needs it."""
    if find_spec("bitsandbytes") is None:
        raise MissingDependency(f"{asked}, and bitsandbytes is not installed", "pip install 'trnflow[quantised]'")


def bitsandbytes_version() -> str | None:
    """Return the version of bitsandbytes, for a key."""
    return version("bitsandbytes") if find_spec("bitsandbytes") else None


def export_runner() -> str:
    """Return the package that runs a StableHLO export: "jax" where installed, else "torch_xla". Raises MissingDependency."""
    for name in ("jax", "torch_xla"):
        if find_spec(name) if name == "jax" else not torch_xla_lacks():
            return name
    raise MissingDependency(
        "a StableHLO export is run by jax or torch_xla, and neither is installed",
        f"pip install 'trnflow[jax]', or {INSTALL_TORCH_XLA}",
    )
