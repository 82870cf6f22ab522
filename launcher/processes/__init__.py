"""Starting, finding, naming and ending processes on Linux.

Independent of jobs and rounds.
"""
