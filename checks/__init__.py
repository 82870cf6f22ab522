"""What is measured on a node, the plan of rounds, the verdict. Knows nothing of the agent.

Empty today: the checks move in with their own change (CHANGELOG.md says what is there).
"""
