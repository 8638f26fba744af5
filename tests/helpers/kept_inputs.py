"""Call a stage without the runner, which makes the inputs that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.launch.phases import run_phase
from trnflow.tasks.stage import Workdir, parameters, stage_of


def run_whole(
    function: Callable[..., Meta], config: StageConfig, inputs: Mapping[str, Input | Source], out: Workdir
) -> Meta:
    """Run a stage, and before it what makes the inputs that it keeps."""
    given = {**inputs}
    for name, kept in stage_of(function).kept.items():
        if (theirs := kept.config(config)) is None or not kept.reads(inputs):  # type: ignore[arg-type]
            continue
        made = Workdir(out.scratch / name, out.scratch / f"{name}-scratch", out.emit)
        made.path.mkdir(parents=True)
        reads = {each: inputs[each] for each in parameters(kept.function) if each in inputs}
        meta = kept.function(theirs, **reads, out=made)
        given[name] = Input(made.path, stage_of(kept.function).kind, meta, f"sha256:{name}")
    return run_phase(function, config, {name: given[name] for name in parameters(function) if name in given}, out)
