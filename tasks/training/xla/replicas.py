"""Sum gradients and share weights between the processes of engine xla when each process drives one device: data
parallel and ZeRO-1, as AWS documents it for torchrun on Trainium.

Each process is a replica (a copy of the model): it traces the same graph on its own share of the rows. Collectives in
the graph exchange gradients and weights between the replicas. Gradients are summed once an update, in fp32. With ZeRO-1
the gradients are reduce-scattered along the dimension that `partition_specs.state_spec` chose, each replica updates its
part of the masters (fp32 copies of the weights) and of AdamW's moments, and the new weights are all-gathered in the
dtype of the computation. No graph depends on the replica's number, so all replicas share one compiled graph.

This module has never run on Trainium. The collectives ran on XLA's CPU client, whose replicas share one process
(`tests/parity/test_replicas.py`). Starting several processes follows torch_xla's documentation and was never run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.layout.slices import piece, piece_start, writes_piece
from trnflow.tasks.training.partition_specs import Spec
from trnflow.tasks.training.shared_types import TensorSlice
from trnflow.tasks.training.world import World, replica_seed

if TYPE_CHECKING:
    from torch import Tensor

    Write = tuple[Tensor, Tensor, Spec]  # (a tensor of the state, its new value, its layout)

BUCKET_MIB = 50  # MiB of tensors to a message: what torch_xla sets for Neuron (ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB)


class OneProcess:
    """Methods that engine xla calls to sum gradients and to share weights between replicas (data parallel copies of
    the model), for one process that drives all devices. The methods send nothing, because GSPMD (XLA's partitioner)
    inserts the collectives into the graph.

    The subclass `Replicas` does the same work for one process on each device."""

    splits = False  # whether a replica holds a part of some masters, whose parameters are whole

    def seed(self, seed: int) -> int:
        """Return the dropout seed of this replica (copy of the model), made from the step's seed `seed`. One process
        that drives all devices returns `seed` itself."""
        return seed

    def rows(self, column: Any) -> Any:
        """Return this replica's share of `column`, an array with one entry for each row of a batch. A replica is a copy
        of the model. One process that drives all devices takes all rows."""
        return column

    def piece(self, tensor: Tensor, spec: Spec) -> Tensor:
        """Return the part that this replica (copy of the model) holds of `tensor`, a whole fp32 master weight or tensor
        of the optimizer's state. spec: the tensor's partition spec, the mesh axis that splits each dimension."""
        return tensor

    def gradients(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the gradients summed over the rows of all replicas (copies of the model), by parameter name. If
        the optimizer's state of a parameter is split over the replicas (ZeRO-1), each replica gets its part only.

        gradients: {parameter name: gradient of this replica's rows}."""
        return gradients

    def totals(self, loss: Tensor, gradients: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return (the loss, the gradient norm) over the rows of all replicas (copies of the model), as scalar tensors.

        loss: [1], the loss of this replica's rows; gradients: what the method `gradients` returned."""
        return loss[0], _squares(gradients.values()).sqrt()

    def share_weights(self, changes: list[Write]) -> list[Write]:
        """Return `changes` with each new weight whole: gathered from the parts that the replicas (copies of the model)
        have updated. changes: a list of (tensor of the model's or optimizer's state, its new value, partition spec)."""
        return changes

    def scores(self, scores: Tensor) -> Tensor:
        """Return the evaluation's scores, a tensor [summed loss, number of correct targets] of this replica's rows,
        summed over all replicas (copies of the model)."""
        return scores

    def slices(self, name: str, tensor: Tensor, spec: Spec) -> Iterator[TensorSlice]:
        """Yield the slices of a tensor that this process writes to a checkpoint, in fp32 on the CPU.

        name: the tensor's name with its prefix; tensor: as this process holds it under `spec`. When several devices hold
        the same part, the first one's is written."""
        import torch_xla.distributed.spmd as xs

        whole = tuple(tensor.shape)
        if not any(spec):
            yield TensorSlice(name, 0, (0,) * len(whole), whole, tensor.cpu().float())
            return
        written = set()
        for device, shard in enumerate(xs.XLAShardedTensor(tensor).local_shards):
            begin = tuple(part.start for part in shard.indices)
            if begin not in written:
                written.add(begin)
                yield TensorSlice(name, device, begin, whole, shard.data.float())


class Replicas(OneProcess):
    """Sums gradients, losses and scores over all replicas (copies of the model), and shares the updated weights, for
    engine xla with one process on each device. Each process is one replica and makes the same calls. The methods add
    collectives to the graph that is being traced. They override those of `OneProcess`, which documents them.

    Args:
        world: this process's number, and the number of processes.
        states: {name of a trained parameter: partition spec of its fp32 master weight and of its moments}. The spec
            names the mesh axis that splits each dimension; "data" stands for a split over the replicas (ZeRO-1).
    """

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

        # cloned because they are summed in place, and may be sums of earlier passes
        found = {name: gradient.clone() for name, gradient in gradients.items() if name not in self._split}
        xm.all_reduce_bucketized_gradients(
            list(found.values()), scale=1.0, groups=None, pin_layout=False, bucket_cap_mb=BUCKET_MIB
        )
        for dimension, names in _by_dimension(self._split):
            parts = xm.reduce_scatter_bucketized(
                xm.REDUCE_SUM,
                [gradients[name] for name in names],
                scale=1.0,
                scatter_dim=dimension,
                shard_count=self._world.mesh.data,
                pin_layout=False,
                bucket_cap_mb=BUCKET_MIB,
            )
            found.update(zip(names, parts, strict=True))
        return {name: found[name] for name in gradients}

    def totals(self, loss: Tensor, gradients: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return (the loss, the gradient norm) over all replicas (copies of the model), as scalar tensors.

        Each element of a gradient counts once. A gradient that is split over the replicas adds the squares of all its
        parts. A gradient that every replica holds whole adds its squares once."""
        import torch
        import torch_xla.core.xla_model as xm

        parts = [gradients[name] for name in self._split]
        wholes = [gradient for name, gradient in gradients.items() if name not in self._split]
        mine = torch.stack([loss[0], _squares(parts) if parts else torch.zeros_like(loss[0])])
        total = xm.all_reduce(xm.REDUCE_SUM, mine, pin_layout=False)
        _reset_token()
        squares = total[1] + _squares(wholes) if wholes else total[1]
        return total[0], squares.sqrt()

    def share_weights(self, changes: list[Write]) -> list[Write]:
        import torch_xla.core.xla_model as xm

        found = list(changes)
        apart = {index: _split_dimension(target, value) for index, (target, value, _) in enumerate(changes)}
        for dimension, indices in _by_dimension({index: at for index, at in apart.items() if at is not None}):
            wholes = xm.all_gather_bucketized(
                [changes[index][1] for index in indices], dim=dimension, pin_layout=False, bucket_cap_mb=BUCKET_MIB
            )
            for index, whole in zip(indices, wholes, strict=True):
                found[index] = (changes[index][0], whole, changes[index][2])
        _reset_token()
        return found

    def scores(self, scores: Tensor) -> Tensor:
        import torch_xla.core.xla_model as xm

        total: Tensor = xm.all_reduce(xm.REDUCE_SUM, scores, pin_layout=False)
        _reset_token()
        return total

    def slices(self, name: str, tensor: Tensor, spec: Spec) -> Iterator[TensorSlice]:
        if writes_piece(spec, self._world):
            sizes = zip(tensor.shape, spec, strict=True)
            whole = tuple(size if axis is None else size * self._world.mesh.data for size, axis in sizes)
            yield TensorSlice(name, self._world.rank, piece_start(whole, spec, self._world), whole, tensor.cpu())


def make_replicas(config: TrainConfig, world: World, states: Mapping[str, Spec]) -> OneProcess:
    """Return the object that sums gradients and norms, and shares weights, between replicas: `Replicas` with one
    process a device, else `OneProcess`, which sends nothing. A replica is a copy of the model with its own share of the
    rows.

    states: {name of a trained parameter: partition spec of its fp32 master weight and of its moments}. With one process
    a device, raise ModelError unless `world` has as many processes as `config` asks for: a graph for fewer replicas
    would silently sum too little."""
    if config.xla_processes == "one" or config.devices == 1:
        return OneProcess()
    if world.mesh != config.mesh:
        raise ModelError(
            f"train.devices is {config.devices} with one process each, and {world.mesh.data} processes were started",
            "let `trnflow run` start them, or set train.xla_processes=one",
        )
    return Replicas(world, states)


def join_processes(config: TrainConfig) -> World:
    """Join the other processes that train together, each with one XLA device, and return this process's `World` (its
    number, and the group for messages to the others).

    torchrun or trnflow started the processes. The messages of `World` go over a separate gloo group, so that they
    never wait for a device. Raise ModelError when XLA counts other numbers of devices or processes than
    `train.devices`, or numbers this process otherwise than the environment variable RANK."""
    import torch.distributed as dist
    import torch_xla.distributed.xla_backend  # noqa: F401  # registers the backend "xla"
    import torch_xla.runtime as xr

    _check("devices in all", xr.global_device_count(), config.devices)
    dist.init_process_group("xla", init_method="xla://")
    _check("replicas", xr.world_size(), config.devices)
    rank = int(os.environ["RANK"])
    if xr.global_ordinal() != rank:  # a replica's part is chosen by this number
        raise ModelError(
            f"rank {rank} is replica {xr.global_ordinal()} to XLA",
            "unset NEURON_PJRT_PROCESS_INDEX and NEURON_RT_VISIBLE_CORES, which order the processes otherwise",
        )
    hosts = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.collective_timeout_seconds))
    return World(rank, config.mesh, hosts, hosts)


def _check(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ModelError(
            f"{wanted} processes train together (WORLD_SIZE), and XLA sees {found} {what}: each would train alone",
            "set train.devices to the number of free NeuronCores, or set train.xla_processes=one",
        )


def _reset_token() -> None:
    """Drop torch_xla's ordering token.

    torch_xla orders collectives by a token that it adds, as zero times a result, to the next one. A NaN would stay in the
    token and reach weights that the gate has kept. The data dependencies here order the collectives already. The token would
    also keep the whole graph alive until it has run."""
    import torch_xla

    torch_xla._XLAC._set_all_reduce_token(str(torch_xla.device()), None)


def _by_dimension(dimensions: Mapping[Any, int]) -> list[tuple[int, list[Any]]]:
    """Group the keys by dimension: one message covers one dimension."""
    ordered = sorted(dimensions, key=lambda key: dimensions[key])
    return [(dimension, list(keys)) for dimension, keys in groupby(ordered, key=lambda key: dimensions[key])]


def _split_dimension(target: Tensor, value: Tensor) -> int | None:
    """Return the dimension along which `value` is a part of `target`, or None."""
    pairs = enumerate(zip(target.shape, value.shape, strict=True))
    return next((dimension for dimension, (whole, part) in pairs if whole != part), None)


def _squares(gradients: Sequence[Tensor] | Any) -> Tensor:
    import torch

    return torch.stack([(gradient * gradient).sum() for gradient in gradients]).sum()
