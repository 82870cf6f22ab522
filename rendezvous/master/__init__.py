"""The master around the group's rules, and the link of a node to it. No gRPC.

Here are the clock and the streams; what is decided is decided in ``group``.
"""
