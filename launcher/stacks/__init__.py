"""The stacks of this node's workers, collected without disturbing them.

``rendezvous.diagnosis.hang`` interprets them.
"""
