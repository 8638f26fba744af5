"""Training's memory on a device, by a pass on "meta" tensors and real updates.

Modules import each other in this order only: estimate <- traced_pass <- traced_memory, micro_batch <- probe <-
device_fit, trace_process.
"""
