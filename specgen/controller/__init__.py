"""SpecController: triggers, forks, termination (§6.1, Algorithm 1)."""
