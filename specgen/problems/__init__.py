"""The problems that ship with SpecGen, in KernelBench format: the same functions in CPU and GPU sizes."""
