"""The stub in vLLM's place, on one host: the other tests prove nothing without it."""

from __future__ import annotations

from hosts.bed import Bed


def test_a_cluster_of_stubs_serves_and_goes(bed: Bed) -> None:
    bed.vdisagg("up", bed.topology([bed.here]))
    bed.serves()
    bed.is_healthy()
    bed.runs(here=8)  # four processes and their guards
    bed.vdisagg("down")
    bed.nothing_is_left()
