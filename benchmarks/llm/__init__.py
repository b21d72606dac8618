"""The LLM client on real servers: see `__main__`."""
