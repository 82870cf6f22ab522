"""The interface between a worker and the agent of its node: hooks, memory pages, sockets.

Used by workers and the agent; does not import torch.
"""
