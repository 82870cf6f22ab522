"""What this machine has and allows: CPUs, accelerators, memory, addresses.

It is read, never changed.
"""
