"""Run all stages of a recipe on a few rows with a small model, and kill training once, to find what would fail."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from trnflow.flows.finetune import DATA_STAGES, ROLES, finetune, loading
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.rehearsal.checks import check_disk, remarks_of, remarks_of_texts
from trnflow.flows.runner.context import RunContext, make_plan, new_run_id
from trnflow.flows.runner.graph import Graph, Node, source_of
from trnflow.flows.runner.memory_check import report_memory
from trnflow.flows.runner.own_code import own_code
from trnflow.flows.runner.plan import Options, Plan
from trnflow.flows.runner.run import run, settle
from trnflow.flows.runner.stage_call import Parent
from trnflow.flows.runner.warm_parents import parent_of, start_warm_parents
from trnflow.flows.runner.work_folders import workplace
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.errors import ProcessFailed, TrnflowError, unexpected
from trnflow.tasks.events import Event, EventLog, Reader, RunState
from trnflow.tasks.events.retention import PREVIEW
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.rehearsal.answer import AnswerConfig, answer
from trnflow.tasks.rehearsal.check_turns import TurnsConfig, check_turns
from trnflow.tasks.rehearsal.sample_rows import SampleConfig, sample_rows
from trnflow.tasks.rehearsal.stand_in import StandInConfig, stand_in
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.store import Store
from trnflow.tasks.system.process import processes_of
from trnflow.tasks.training.memory.trace_process import trace_in_process

STEPS = 2
BATCH = 4
"""Rows of a batch: enough for a mean over rows to differ from one."""
TOKENS = 8
"""Tokens of each generated text."""


@dataclass
class Rehearsal(Reader):
    """What a rehearsal found.

    Attributes:
        remarks: Warnings of the data stages, and what the plan remarks.
        of_sample: Those of the sample that the run says again, of all rows.
        fault: The error that a run would end with; None if all went well.
        killed: Whether training was killed after a step, and went on.
        memory: One line about the memory of the real shape.
    """

    remarks: list[str] = field(default_factory=list)
    of_sample: set[str] = field(default_factory=set)
    fault: TrnflowError | None = None
    killed: bool = False
    memory: str = ""
    seconds: float = 0.0

    def read(self, event: Event, state: RunState) -> None:
        """Note the warnings of the stages that read rows."""
        if event["event"] == "note" and event["level"] == "warning" and event["stage"] in HEARD:
            self.remark(event["text"], of_sample=event["stage"] in SAMPLED)

    def remark(self, text: str, *, of_sample: bool = False) -> None:
        if text not in self.remarks:
            self.remarks.append(text)
        if of_sample:
            self.of_sample.add(text)

    def to_json(self) -> Meta:
        fault = {"stage": self.fault.stage or None, **self.fault.to_json()} if self.fault else None
        return {
            "schema": 1,
            "fault": fault,
            "remarks": self.remarks,
            "killed": self.killed,
            "memory": self.memory,
            "seconds": round(self.seconds, 1),
        }


HEARD = frozenset({*DATA_STAGES, "check_turns"})
SAMPLED = frozenset(DATA_STAGES) - {ROLES["rows"]}
OF_SMALL_MODEL = frozenset({ROLES["model"], ROLES["export"], ROLES["evaluation"]})
PLANNED = "killed on purpose, after its first saved state: it must go on from there"


def rehearse(context: RunContext, *readers: Reader) -> Rehearsal:
    """Rehearse the context's recipe in a store of its own. An error of a stage is the rehearsal's fault; Ctrl-C is
    raised.

    readers: Called with the events of the rehearsal's runs.
    """
    rehearsal, begun = Rehearsal(), time.monotonic()
    try:
        plan = context.plan = context.plan or make_plan(finetune(context.recipe), context)
        plan.check_needs(Options(), here=context.environment)
        for note in plan.notes:
            rehearsal.remark(note)
        context.store.prepare()
        for kind in ("trash", "partial"):  # a StoreError says what can't be written, read or removed
            name = f"{kind}/rehearsal-{new_run_id()}"
            context.store.backend.create(name, b"")
            context.store.backend.read(name)
            context.store.backend.remove(name)
        # in the folder of an attempt: that of a killed rehearsal goes with the next run
        with workplace(context.store.home, f"rehearsal-{new_run_id()}") as folder:
            store = Store(str(folder), context.store.home)
            store.prepare()
            small = _Small(replace(context, store=store), plan, rehearsal, readers)
            sampled = small.sample()
            variables, modules = small.read(sampled)
            limit = context.recipe.launch.memory_gib
            trace = partial(trace_in_process, environ=variables, preload=modules, memory_gib=limit)
            memory = report_memory(context.recipe, plan, trace)
            if memory.error is not None:
                raise memory.error
            rehearsal.memory = str(memory)
            model = small.model()
            check_disk(context.recipe, context.store, memory.memory, model.meta["parameters"])
            small.train(sampled, model)
    except (TrnflowError, OSError) as error:
        rehearsal.fault = unexpected(error)
    rehearsal.seconds = time.monotonic() - begun
    return rehearsal


@dataclass
class _Small:
    """The runs of a rehearsal. context: with its store; plan: of the real run."""

    context: RunContext
    plan: Plan
    rehearsal: Rehearsal
    readers: tuple[Reader, ...]

    def begin(self, recipe: Recipe, killer: Killer | None = None) -> RunContext:
        watched = (_Watched(each, killer) for each in self.readers)
        log = EventLog(*watched, self.rehearsal, *([killer] if killer else []))
        context = replace(self.context, recipe=recipe, plan=None, force=frozenset())
        return context.for_run(log, run=new_run_id() + PREVIEW, kind="preview")

    def sample(self) -> Artifact:
        """Return rows of each split, and remark what they show of all rows."""
        recipe = self.context.recipe
        rows = loading(recipe)
        target = recipe.format.target
        several = target if recipe.format.task == "multi_label" and isinstance(target, str) else ""
        sample = Node(sample_rows, SampleConfig(several=several), {"rows": rows})
        sampled = settle(Graph((rows, sample)), self.begin(_reduced(recipe))).artifact("sample_rows")
        for remark in remarks_of(recipe, sampled):
            self.rehearsal.remark(remark)
        return sampled

    def read(self, sampled: Artifact) -> Parent:
        """Make the model's input of the sample with the real tokenizer. Return the warm parent of training, which
        imports meanwhile."""
        recipe = _reduced(self.context.recipe)
        context, graph = self.begin(recipe), finetune(recipe, rows=sampled)
        plan = make_plan(graph, context)
        start_warm_parents([plan.steps[ROLES[role]] for role in ("training", "model")], context)
        settle(graph, context, plan=plan, until=ROLES["chunks"])
        texts, tokens = (plan.artifact(ROLES[role]) for role in ("texts", "tokens"))
        if recipe.format.task == "chat" and not recipe.format.make:
            written = Node(check_turns, TurnsConfig(messages=recipe.format.messages), {"rows": sampled, "texts": texts})
            settle(Graph((written,)), self.begin(recipe))
        for remark in remarks_of_texts(recipe, texts, tokens):
            self.rehearsal.remark(remark, of_sample=True)
        return parent_of(plan.steps[ROLES["training"]], context)

    def model(self) -> Artifact:
        recipe = _reduced(self.context.recipe)
        config = StandInConfig(task=FORMATS[recipe.format.task].name)
        node = Node(stand_in, config, {"model": source_of(model_source, recipe.model)})
        return settle(Graph((node,)), self.begin(recipe)).artifact("stand_in")

    def train(self, sampled: Artifact, model: Artifact) -> None:
        """Train, publish, export, evaluate and ask the small model."""
        store = self.context.store
        with workplace(store.home, f"stand-in-{new_run_id()}") as work:
            folder = store.link_files(model, work / "model")
            recipe = _with_model(_reduced(self.context.recipe), self.plan, model, folder)
            graph, killer = finetune(recipe, rows=sampled), Killer(store)
            first = run(graph, self.begin(recipe, killer), Options(until=ROLES["training"], record=False))
            self.rehearsal.killed = killer.killed and isinstance(first.error, ProcessFailed)
            if first.error is not None and not self.rehearsal.killed:
                raise first.error
            if not self.rehearsal.killed:
                self.rehearsal.remark("training saved no state before it ended, so no resumption was tried")
            weights = settle(graph, self.begin(recipe)).artifact(ROLES["model"])
            asked = Node(
                answer, AnswerConfig(), {"weights": weights, "rows": sampled, "code": own_code(recipe, "format.make")}
            )
            settle(Graph((asked,)), self.begin(recipe))


class _Watched(Reader):
    """Passes a rehearsal's events on, but for what is said of the answers of the small model, and of the rows, which the run
    says again. killer: its kill is no failure."""

    def __init__(self, reader: Reader, killer: Killer | None = None) -> None:
        self._reader, self._killer = reader, killer

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "note":
            is_of_rows = event["level"] == "info" and event["stage"] == ROLES["rows"]
            if is_of_rows or event["stage"] in OF_SMALL_MODEL:
                return
        if event["event"] == "stage_failed" and self._killer is not None and self._killer.killed:
            stopped = event.copy()
            stopped["stopped"] = True
            self._reader.read(stopped, state)
            n, at, stage = event["n"], event["time"], event["stage"]
            event = {"n": n, "time": at, "event": "note", "stage": stage, "level": "info", "text": PLANNED}
        self._reader.read(event, state)


class Killer(Reader):
    """Reader that kills training, which waits for it as soon as it has saved its first state."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.killed = False
        self._ended = threading.Event()

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "stage_begun" and event["stage"] == ROLES["training"]:
            self._ended.clear()
            self._store.partial(event["key"]).hold()
            threading.Thread(target=self._watch, args=(event["key"], event["attempt"]), daemon=True).start()
        elif event["event"] in ("stage_ended", "stage_failed", "run_ended"):
            self._ended.set()

    def _watch(self, key: str, attempt: str) -> None:
        partial = self._store.partial(key)
        while not self._ended.wait(0.02):
            if partial.steps():
                for pid in processes_of(attempt):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                        self.killed = True
                break
        partial.release()


def _reduced(recipe: Recipe) -> Recipe:
    """Return the recipe, cut down to one device, two steps and short answers."""
    device = recipe.train.device if recipe.train.device != "neuron" else "cpu"
    reduced = recipe.changed(
        {
            "tracking.enabled": False, "task_runner.kind": "threads", "task_runner.address": None,
            "train.device": device, "train.devices": 1, "train.tensor_parallel_size": 1, "train.xla_processes": None,
            "train.sequence_parallel": False, "train.zero1": False, "train.fsdp": False, "train.dp_replicate_size": 1,
            "train.micro_batch": None,
            "train.global_batch": BATCH, "train.last_batch": "pad", "train.max_steps": STEPS, "train.epochs": 1,
            "train.checkpoint_every": 1, "train.log_every": 1, "train.warmup_ratio": 0.0, "train.eval_every": None,
            "train.warm_start_from": None, "train.compiler_flags": [], "train.allow_overcommit": True,
            "train.remat": bool(recipe.train.remat),
            "pack.buckets": 1, "evaluate.export_rows": 1,
            "export.target": "stablehlo" if recipe.export.target == "neuron" else recipe.export.target,
            "evaluate.generation.max_new_tokens": TOKENS, "evaluate.generation.prompts": 1,
            **({"evaluate.harness.limit": 1} if recipe.evaluate.harness else {}),
        }
    )  # fmt: skip
    # on this machine
    return reduced.model_copy(update={"launch": recipe.launch.here()})


def _with_model(recipe: Recipe, plan: Plan, small: Artifact, folder: Path) -> Recipe:
    """Return the recipe with the small model, which lies in `folder`."""
    sizes: Mapping[str, Any] = small.meta["settings"]
    if recipe.model.source is None:
        return recipe.changed({"model.config": {**recipe.model.config, **sizes}})
    kept = {name: value for name, value in recipe.model.overrides.items() if name not in sizes}
    tokenizer = str(folder) if plan.sources["model"].location["tokenizer"] else None
    return recipe.changed(
        {
            "model.config": {**recipe.model.config, **sizes}, "model.source": str(folder), "model.revision": None,
            "model.overrides": kept, "model.tokenizer": tokenizer,
        }
    )  # fmt: skip
