"""Metrics for Prometheus, and progress for Kubeflow, of a running job.

Values are read when they are scraped. This package never delays the job, and decides nothing.
"""
