"""`python -m probe` is `probe`."""

from probe.cli import main

main()
