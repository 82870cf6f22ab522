"""The token of a job and the security of its connections: mutual TLS, or plain text without one.

Only ``wire`` opens channels and ports.
"""
