"""The device queues, measured: latencies beside stock Celery, depth, the split's response to a step, fairness."""
