"""Join the process group of engine native: one process a device, over gloo and the device's own backend."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trnflow.tasks.training.alike import check_alike
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.partition_specs import Mesh
from trnflow.tasks.training.world import World


def join_processes(config: TrainConfig, rows: str) -> World:
    """Join the process group and make the mesh; return this rank's `World`.

    Reads RANK, LOCAL_RANK (of its device) and TRNFLOW_RENDEZVOUS (a file). Raises when a rank is later than
    `train.collective_timeout_seconds`, or differs (`check_alike`).
    """
    rank = int(os.environ["RANK"])
    KINDS[config.device].join()
    dist.init_process_group(
        KINDS[config.device].backend,
        init_method=f"file://{os.environ['TRNFLOW_RENDEZVOUS']}",
        rank=rank,
        world_size=config.devices,
        timeout=timedelta(seconds=config.collective_timeout_seconds),
    )
    # before the mesh, whose groups unlike ranks would make in another order
    check_alike(config, rows)
    return World(rank, config.mesh, make_groups(config.device, config.mesh))


def make_groups(device: str, mesh: Mesh) -> DeviceMesh:
    """Return the mesh's process groups: "data" and "model", of HSDP also "copies" and "shards"."""
    if mesh.copies == 1:
        return init_device_mesh(device, (mesh.data, mesh.model), mesh_dim_names=("data", "model"))
    sizes, names = (mesh.copies, mesh.parts("data"), mesh.model), ("copies", "shards", "model")
    groups = init_device_mesh(device, sizes, mesh_dim_names=names)
    groups["copies", "shards"]._flatten("data")
    return groups
