"""SpecGen: agentic kernel optimisation with speculative generation."""

__version__ = "0.1.0"
