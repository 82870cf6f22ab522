"""What a node does when it will be gone soon: its workers leave their state first."""
