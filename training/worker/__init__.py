"""The interface between a worker and the agent of its node: hooks, memory pages, sockets.

Workers and the agent import it. It does not import torch.
"""
