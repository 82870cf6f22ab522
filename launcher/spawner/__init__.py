"""The process that forks the workers, the fork server behind ``--preload``, and their client.

No gRPC, no threads, and no event loop except in the client.
"""
