"""Measurements, each printed by one command with the bar it is held to. Not tests: nothing here runs in CI's check."""
