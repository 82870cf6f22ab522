"""What is measured on a node, the plan of rounds, the verdict. Knows nothing of the agent."""
