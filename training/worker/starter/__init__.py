"""The directory that is first on the ``PYTHONPATH`` of an executed worker that has hooks."""
