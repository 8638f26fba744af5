"""Sum gradients and share weights between processes of engine xla that each drive one device, as AWS documents for
torchrun.

Collectives in the graph sum gradients once an update, in fp32; ZeRO-1 scatters them and gathers weights. Never run on
Trainium: XLA's CPU client ran the collectives (`tests/parity/test_replicas.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.alike import check_alike
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.layout.slices import piece, piece_start, writes_piece
from trnflow.tasks.training.partition_specs import Spec
from trnflow.tasks.training.shared_types import TensorSlice
from trnflow.tasks.training.world import World, replica_seed

Write = tuple[Tensor, Tensor, Spec]  # (a tensor of the state, its new value, its layout)
BUCKET_MIB = 50  # MiB of tensors to a message: what torch_xla sets for Neuron (ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB)


class OneProcess:
    """What engine xla calls around an update; one process for all devices sends nothing: GSPMD inserts the collectives."""

    splits = False  # whether a replica holds a part of some masters, whose parameters are whole

    def seed(self, seed: int) -> int:
        """Return this replica's dropout seed."""
        return seed

    def rows(self, column: Any) -> Any:
        """Return this replica's share of a column."""
        return column

    def piece(self, tensor: Tensor, spec: Spec) -> Tensor:
        """Return this replica's part of a master weight or state tensor."""
        return tensor

    def gradients(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the gradients summed over all replicas' rows; with ZeRO-1 this replica's parts."""
        return gradients

    def totals(self, numbers: Tensor, gradients: Mapping[str, Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return (numbers, gradient norm) over all replicas, as scalars. numbers: [n]."""
        return [numbers[at] for at in range(len(numbers))], _squares(gradients.values()).sqrt()

    def share_weights(self, changes: list[Write]) -> list[Write]:
        """Return the writes with each new weight gathered from its parts."""
        return changes

    def scores(self, scores: Tensor) -> Tensor:
        """Return an evaluation's numbers, summed over all replicas."""
        return scores

    def slices(self, name: str, tensor: Tensor, spec: Spec) -> Iterator[TensorSlice]:
        """Yield the slices of a tensor that this process writes to a checkpoint, in fp32 on the CPU."""
        whole = tuple(tensor.shape)
        if not any(spec):
            yield TensorSlice(name, 0, (0,) * len(whole), whole, tensor.cpu().float())
            return
        written = set()
        for device, shard in enumerate(xs.XLAShardedTensor(tensor).local_shards):
            begin = tuple(part.start for part in shard.indices)
            # of devices that hold the same part, the first one's is written
            if begin not in written:
                written.add(begin)
                yield TensorSlice(name, device, begin, whole, shard.data.float())


class Replicas(OneProcess):
    """`OneProcess` for one process a device: adds collectives to the graph that is traced.

    states: {name: spec of the parameter's masters and moments}; "data" splits over the replicas (ZeRO-1).
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
        # cloned because they are summed in place, and may be sums of earlier passes
        sums = {name: gradient.clone() for name, gradient in gradients.items() if name not in self._split}
        xm.all_reduce_bucketized_gradients(
            list(sums.values()), scale=1.0, groups=None, pin_layout=False, bucket_cap_mb=BUCKET_MIB
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
            sums.update(zip(names, parts, strict=True))
        return {name: sums[name] for name in gradients}

    def totals(self, numbers: Tensor, gradients: Mapping[str, Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return (numbers, gradient norm) over all replicas; each element counts once."""
        parts = [gradients[name] for name in self._split]
        wholes = [gradient for name, gradient in gradients.items() if name not in self._split]
        mine = [numbers[at] for at in range(len(numbers))]
        mine.append(_squares(parts) if parts else torch.zeros_like(mine[0]))
        total = xm.all_reduce(xm.REDUCE_SUM, torch.stack(mine), pin_layout=False)
        _reset_token()
        squares = total[-1] + _squares(wholes) if wholes else total[-1]
        return [total[at] for at in range(len(numbers))], squares.sqrt()

    def share_weights(self, changes: list[Write]) -> list[Write]:
        shared = list(changes)
        apart = {index: _split_dimension(target, value) for index, (target, value, _) in enumerate(changes)}
        for dimension, indices in _by_dimension({index: at for index, at in apart.items() if at is not None}):
            wholes = xm.all_gather_bucketized(
                [changes[index][1] for index in indices], dim=dimension, pin_layout=False, bucket_cap_mb=BUCKET_MIB
            )
            for index, whole in zip(indices, wholes, strict=True):
                shared[index] = (changes[index][0], whole, changes[index][2])
        _reset_token()
        return shared

    def scores(self, scores: Tensor) -> Tensor:
        total: Tensor = xm.all_reduce(xm.REDUCE_SUM, scores, pin_layout=False)
        _reset_token()
        return total

    def slices(self, name: str, tensor: Tensor, spec: Spec) -> Iterator[TensorSlice]:
        if writes_piece(spec, self._world):
            sizes = zip(tensor.shape, spec, strict=True)
            whole = tuple(size if axis is None else size * self._world.mesh.data for size, axis in sizes)
            yield TensorSlice(name, self._world.rank, piece_start(whole, spec, self._world), whole, tensor.cpu())


def make_replicas(config: TrainConfig, world: World, states: Mapping[str, Spec]) -> OneProcess:
    """Return `Replicas` with one process a device, else `OneProcess`. Raises ModelError when processes are missing."""
    if config.xla_processes == "one" or config.devices == 1:
        return OneProcess()
    # a graph for fewer replicas would silently sum too little
    if world.mesh != config.mesh:
        raise ModelError(
            f"train.devices is {config.devices} with one process each, and {world.mesh.data} processes were started",
            "let `trnflow run` start them, or set train.xla_processes=one",
        )
    return Replicas(world, states)


def join_processes(config: TrainConfig, rows: str) -> World:
    """Join the processes that train together, one an XLA device.

    Raises ModelError when XLA counts other devices or processes than `train.devices`, or numbers this one other than
    RANK, and MachineError for ranks that differ (`check_alike`).
    """
    import torch_xla.distributed.xla_backend  # noqa: F401  # registers the backend "xla"

    _check("devices in all", xr.global_device_count(), config.devices)
    dist.init_process_group("xla", init_method="xla://")
    _check("replicas", xr.world_size(), config.devices)
    rank = int(os.environ["RANK"])
    if xr.global_ordinal() != rank:  # a replica's part is chosen by this number
        raise ModelError(
            f"rank {rank} is replica {xr.global_ordinal()} to XLA",
            "unset NEURON_PJRT_PROCESS_INDEX and NEURON_RT_VISIBLE_CORES, which order the processes otherwise",
        )
    # messages on the host go over gloo, so that they never wait for a device
    hosts = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.collective_timeout_seconds))
    check_alike(config, rows, hosts)
    return World(rank, config.mesh, hosts, hosts)


def _check(what: str, count: int, wanted: int) -> None:
    if count != wanted:
        raise ModelError(
            f"{wanted} processes train together (WORLD_SIZE), and XLA sees {count} {what}: each would train alone",
            "set train.devices to the number of free NeuronCores, or set train.xla_processes=one",
        )


def _reset_token() -> None:
    """Drop torch_xla's ordering token."""
    # the token adds zero times a result to the next one, so that a NaN would reach weights that the gate has kept; it
    # keeps the whole graph alive, and the data dependencies order the collectives already
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
    return torch.stack([(gradient * gradient).sum() for gradient in gradients]).sum()
