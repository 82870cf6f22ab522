"""The master, and the link of a node to it. No gRPC.

This package has the clock and the streams; ``group`` has the rules.
"""
