"""What is needed to start, find, name and end processes on Linux.

Nothing here knows of jobs or rounds.
"""
