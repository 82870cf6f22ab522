"""The node side: the command line, the agent, its processes, logs and reports.

It never decides for the group (``rendezvous`` does) and never imports torch.
"""
