"""The secret of a job, and what it makes of the wire: mutual TLS, or plain text without one.

Channels are opened and ports listened at in ``wire`` and nowhere else.
"""
