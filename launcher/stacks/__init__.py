"""Where the workers of this node are: their stacks, taken without disturbing them.

Nothing here judges: ``rendezvous.diagnosis.hang`` does.
"""
