"""`python -m specgen`: the command line."""

from specgen.cli import main

main()
