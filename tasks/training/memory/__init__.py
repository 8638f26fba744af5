"""The memory that training takes on one device: counted on "meta" tensors, compared with the device's memory, and tried
out.

Modules import each other in this order only: estimate <- traced_pass <- traced_memory, micro_batch <- probe <-
device_fit, trace_process.
"""
