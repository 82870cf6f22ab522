"""What this machine has and allows: CPUs, accelerators, memory, addresses.

Nothing here changes the machine.
"""
