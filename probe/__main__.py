"""`python -m probe` runs the command `probe`."""

from probe.cli import main

main()
