"""The workers of this node: how they are started and watched, and state that outlives them."""
