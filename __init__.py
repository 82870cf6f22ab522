"""ft-run: a fault-tolerant launcher for PyTorch training, a drop-in replacement for torchrun.

The repository root is this package. Imports run one way, downwards:
``launcher`` (node side) → ``checks`` → ``rendezvous`` (the group's rules) → ``protos`` (the wire).
"""
