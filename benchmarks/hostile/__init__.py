"""Hostile candidates: attacks on the walls, canary secrets, infrastructure that breaks under an evaluation."""
