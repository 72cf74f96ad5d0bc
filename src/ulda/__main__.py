"""Run the command line with ``python -m ulda``."""

from ulda.cli import main

main()
