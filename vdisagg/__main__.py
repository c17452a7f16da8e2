"""`python -m vdisagg` is `vdisagg`."""

from vdisagg.cli import main

main()
