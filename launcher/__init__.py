"""The node side: the command line, the agent, its processes, logs and reports.

Nothing here decides for the group (``rendezvous`` does), and nothing here imports torch.
"""
