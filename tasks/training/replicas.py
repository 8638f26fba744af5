"""Engine xla as one process a device: data parallel and ZeRO-1, as AWS documents it for torchrun on Trainium.

Every process traces the same graph on its own share of the rows; what replicas tell each other are collectives in that
graph. Gradients are summed once an update, in fp32: whole, or with ZeRO-1 split along the dimension that `plan.state_spec`
chose, so that a replica updates its part of masters and moments alone, and the new weights are gathered in the dtype that
computes. Nothing in a graph says which replica it is, so all have one hash, and one compile serves them all.

Nothing here has run on Trainium. The collectives ran on XLA's CPU client, whose replicas stand in one process
(`tests/test_replicas.py`); starting several processes is done as torch_xla documents it, and met no runtime that lets it be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tasks.errors import ModelError
from tasks.training.config import TrainConfig
from tasks.training.engine import Box
from tasks.training.layout import piece, start, writes
from tasks.training.plan import Mesh, Spec
from tasks.training.ranks import World, replica_seed

if TYPE_CHECKING:
    from torch import Tensor

    Write = tuple[Tensor, Tensor, Spec]  # (a tensor of the state, its new value, its layout)

BUCKET = 50  # MiB of tensors to a message: what torch_xla sets for Neuron (ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB)


class OneProcess:
    """All devices are driven from here, and GSPMD makes the collectives: nothing is told."""

    splits = False  # whether a replica holds parts of masters that compute whole

    def seed(self, seed: int) -> int:
        """Of this replica's dropout."""
        return seed

    def rows(self, column: Any) -> Any:
        """This replica's share of a batch's column."""
        return column

    def piece(self, tensor: Tensor, spec: Spec) -> Tensor:
        """What this replica holds of a whole tensor of the optimizer's."""
        return tensor

    def gradients(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Those of this replica's rows -> of all rows, laid out as the optimizer's state."""
        return gradients

    def totals(self, loss: Tensor, gradients: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """loss: [1], of this replica's rows; gradients: as `gradients` returned them. (the loss, the norm), scalars."""
        return loss[0], _squares(gradients.values()).sqrt()

    def spread(self, changes: list[Write]) -> list[Write]:
        """With the parts of weights that compute whole put together."""
        return changes

    def scores(self, scores: Tensor) -> Tensor:
        """Summed over all rows."""
        return scores

    def boxes(self, name: str, tensor: Tensor, spec: Spec) -> Iterator[Box]:
        """tensor: as it is held here, of one laid out by `spec`; what several hold is written by the first. In fp32."""
        import torch_xla.distributed.spmd as xs

        whole = tuple(tensor.shape)
        if not any(spec):
            yield Box(name, 0, (0,) * len(whole), whole, tensor.cpu().float())
            return
        written = set()
        for device, shard in enumerate(xs.XLAShardedTensor(tensor).local_shards):
            begin = tuple(part.start for part in shard.indices)
            if begin not in written:
                written.add(begin)
                yield Box(name, device, begin, whole, shard.data.float())


class Replicas(OneProcess):
    """One of `world.mesh.data` processes. states: the layout of each trained parameter's master and moments."""

    def __init__(self, world: World, states: Mapping[str, Spec]) -> None:
        self._world = world
        self._split = {name: spec.index("data") for name, spec in states.items() if "data" in spec}
        self.splits = bool(self._split)

    def seed(self, seed: int) -> int:
        return replica_seed(seed, self._world.data)

    def rows(self, column: Any) -> Any:
        size = len(column) // self._world.mesh.data
        return column[size * self._world.data :][:size]

    def piece(self, tensor: Tensor, spec: Spec) -> Tensor:
        return piece(tensor, spec, self._world).contiguous()

    def gradients(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        import torch_xla.core.xla_model as xm

        # summed in place, and what comes in may be the sums of earlier passes
        found = {name: gradient.clone() for name, gradient in gradients.items() if name not in self._split}
        xm.all_reduce_bucketized_gradients(
            list(found.values()), scale=1.0, groups=None, pin_layout=False, bucket_cap_mb=BUCKET
        )
        for dimension, names in _grouped(self._split):
            parts = xm.reduce_scatter_bucketized(
                xm.REDUCE_SUM,
                [gradients[name] for name in names],
                scale=1.0,
                scatter_dim=dimension,
                shard_count=self._world.mesh.data,
                pin_layout=False,
                bucket_cap_mb=BUCKET,
            )
            found.update(zip(names, parts, strict=True))
        return {name: found[name] for name in gradients}

    def totals(self, loss: Tensor, gradients: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Each gradient counts once: those that are split are summed over the replicas."""
        import torch
        import torch_xla.core.xla_model as xm

        parts = [gradients[name] for name in self._split]
        wholes = [gradient for name, gradient in gradients.items() if name not in self._split]
        mine = torch.stack([loss[0], _squares(parts) if parts else torch.zeros_like(loss[0])])
        total = xm.all_reduce(xm.REDUCE_SUM, mine, pin_layout=False)
        _end_chain()
        squares = total[1] + _squares(wholes) if wholes else total[1]
        return total[0], squares.sqrt()

    def spread(self, changes: list[Write]) -> list[Write]:
        import torch_xla.core.xla_model as xm

        found = list(changes)
        apart = {index: _cut(target, value) for index, (target, value, _) in enumerate(changes)}
        for dimension, indices in _grouped({index: at for index, at in apart.items() if at is not None}):
            wholes = xm.all_gather_bucketized(
                [changes[index][1] for index in indices], dim=dimension, pin_layout=False, bucket_cap_mb=BUCKET
            )
            for index, whole in zip(indices, wholes, strict=True):
                found[index] = (changes[index][0], whole, changes[index][2])
        _end_chain()
        return found

    def scores(self, scores: Tensor) -> Tensor:
        import torch_xla.core.xla_model as xm

        total: Tensor = xm.all_reduce(xm.REDUCE_SUM, scores, pin_layout=False)
        _end_chain()
        return total

    def boxes(self, name: str, tensor: Tensor, spec: Spec) -> Iterator[Box]:
        if writes(spec, self._world):
            sizes = zip(tensor.shape, spec, strict=True)
            whole = tuple(size if axis is None else size * self._world.mesh.data for size, axis in sizes)
            yield Box(name, self._world.rank, start(whole, spec, self._world), whole, tensor.cpu())


def replicas_of(config: TrainConfig, world: World, states: Mapping[str, Spec]) -> OneProcess:
    """ModelError unless `world` is that of `config`: a graph of fewer replicas would sum too little, without a word."""
    if config.xla_processes == "one" or config.devices == 1:
        return OneProcess()
    if world.mesh != Mesh(config.devices, 1):
        raise ModelError(
            f"train.devices is {config.devices} with a process each, and {world.mesh.data} take part",
            "let `trnflow run` start them, or set train.xla_processes=one",
        )
    return Replicas(world, states)


def meet(config: TrainConfig) -> Any:
    """Join the processes that torchrun or the leader of ranks started, each with one device. Returns the group through which
    their hosts speak, so that it costs the devices nothing. ModelError when XLA does not see all of them as one world."""
    import torch.distributed as dist
    import torch_xla.distributed.xla_backend  # noqa: F401  # registers "xla"
    import torch_xla.runtime as xr

    _check("devices in all", xr.global_device_count(), config.devices)
    dist.init_process_group("xla", init_method="xla://")
    _check("replicas", xr.world_size(), config.devices)
    if xr.global_ordinal() != int(os.environ["RANK"]):  # replicas take their parts by it
        raise ModelError(
            f"rank {os.environ['RANK']} is replica {xr.global_ordinal()} to XLA",
            "unset NEURON_PJRT_PROCESS_INDEX and NEURON_RT_VISIBLE_CORES, which order the processes otherwise",
        )
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=config.collective_timeout_seconds))


def _check(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ModelError(
            f"{wanted} processes train together (WORLD_SIZE), and XLA sees {found} {what}: each would train alone",
            "set train.devices to the NeuronCores that are there and free, or set train.xla_processes=one",
        )


def _end_chain() -> None:
    """torch_xla orders collectives by a token that it adds, as zero times a result, to what comes next; not a number, once met,
    would stay in it, and reach weights that the gate has kept. What follows depends on what came before as it is. Also the
    token would keep the whole graph alive until it has run."""
    import torch_xla

    torch_xla._XLAC._set_all_reduce_token(str(torch_xla.device()), None)


def _grouped(dimensions: Mapping[Any, int]) -> list[tuple[int, list[Any]]]:
    """By dimension: a message takes one."""
    ordered = sorted(dimensions, key=lambda key: dimensions[key])
    return [(dimension, list(keys)) for dimension, keys in groupby(ordered, key=lambda key: dimensions[key])]


def _cut(target: Tensor, value: Tensor) -> int | None:
    """The dimension along which `value` is a part of `target`."""
    pairs = enumerate(zip(target.shape, value.shape, strict=True))
    return next((dimension for dimension, (whole, part) in pairs if whole != part), None)


def _squares(gradients: Sequence[Tensor] | Any) -> Tensor:
    import torch

    return torch.stack([(gradient * gradient).sum() for gradient in gradients]).sum()
