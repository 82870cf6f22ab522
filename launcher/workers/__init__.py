"""The workers of this node: how they are started and watched, and what outlives them."""
