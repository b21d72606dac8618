"""Processes: Celery workers and the scheduler. Thin: what they do lives in `specgen`."""
