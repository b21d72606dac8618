"""The trigger parser (§6.1.1): where in a reasoning trace SpecController forks.

A pure function of the text, fed in pieces of any size. Not here: whether a trigger launches anything (spacing,
outstanding forks, K: that is the fork policy), idle devices, any I/O.

Four classes, one file each: `decisions` (a design value is committed), `fences` (a code block is complete), `bodies`
and `triton` (a kernel is complete), `phrases` (an implementation is announced). docs/triggers.md tells the rules.
"""

from specgen.controller.triggers.parser import TriggerParser

__all__ = ["TriggerParser"]
