"""Engine xla: torch_xla's compiled graphs, by SPMD over the devices of one process, or with one process a device."""
