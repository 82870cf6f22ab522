"""The checks: measurements on a node, the plan of rounds, the verdict. Independent of the agent."""
