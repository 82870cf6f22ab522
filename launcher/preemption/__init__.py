"""Preemption of a node: its workers save a consistent snapshot before it exits."""
