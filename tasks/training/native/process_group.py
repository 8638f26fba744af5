"""Join the process group of engine native: one process a device, over gloo on CPUs and over NCCL and gloo on GPUs."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.world import World

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""{device: torch.distributed's backend}."""


def join_processes(config: TrainConfig) -> World:
    """Join the process group of all ranks (the processes that train together, one for each device) and make the mesh
    (data parallel x tensor parallel ranks). Return this process's `World`: its number and the groups.

    Environment variables: RANK (this process's number), LOCAL_RANK (the number of its GPU), TRNFLOW_RENDEZVOUS (the
    file through which the ranks find each other). Fails when a rank does not join within
    `train.collective_timeout_seconds`."""
    rank = int(os.environ["RANK"])
    if config.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        BACKENDS[config.device],
        init_method=f"file://{os.environ['TRNFLOW_RENDEZVOUS']}",
        rank=rank,
        world_size=config.devices,
        timeout=timedelta(seconds=config.collective_timeout_seconds),
    )
    groups = init_device_mesh(config.device, tuple(config.mesh), mesh_dim_names=("data", "model"))
    return World(rank, config.mesh, groups)
