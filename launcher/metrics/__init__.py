"""What programs read of a running job: metrics for Prometheus, progress for Kubeflow.

Values are read when they are scraped. It never delays the job, and decides nothing.
"""
