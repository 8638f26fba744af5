"""Find the memory that training takes on one device by a pass on "meta" tensors, compare it with the device's memory,
and test a micro batch by real updates.

Modules import each other in this order only: estimate <- traced_pass <- traced_memory, micro_batch <- probe <-
device_fit, trace_process.
"""
