"""What a worker and the agent of its node share: hooks, pages of memory, sockets.

It imports no torch. The agent uses it too.
"""
