"""The resources and limits of this machine: CPUs, accelerators, memory, addresses.

This package does not change the machine.
"""
