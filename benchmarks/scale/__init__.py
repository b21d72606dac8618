"""200 jobs and 1000 simulated devices on one real Redis: what grows with what."""
