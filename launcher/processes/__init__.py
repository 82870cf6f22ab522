"""Starts, finds, names and ends processes on Linux. Independent of jobs and rounds."""
