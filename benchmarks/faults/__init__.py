"""R1–R10: what is lost, done twice or left behind when parts of the system die. ``python -m benchmarks.faults``."""
