"""The integrity part of the scorecard: honest kernels that must pass, cheats that must not."""
