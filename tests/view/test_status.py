"""How the status of a cluster looks, in 100 columns."""

from __future__ import annotations

import json

import msgspec

from vdisagg.cluster.admin import InstanceStatus, LinkStatus, Totals
from vdisagg.cluster.snapshot import ClusterView, Observation, ProcessView
from vdisagg.plan.model import Role
from vdisagg.view.status import WIDTH, status_json, status_text
from vdisagg.view.text import columns

NOW = 1000.0
RUNS = Observation("running", pid=70, guard_pid=69, guard_alive=True, members=(70,))


def engine(
    name: str, detail: str = "", observation: Observation = RUNS, **known: object
) -> ProcessView:
    role: Role = "prefill" if name.startswith("p") else "decode"
    fields = {"name": name, "role": role, "state": "ready", "since": NOW - 64, **known}
    instance = msgspec.convert(fields, InstanceStatus)
    return ProcessView(
        name, role, "here", instance.state, observation, "/log", instance.since, detail, instance
    )


def view(*engines: ProcessView, links: tuple[LinkStatus, ...] = (), **totals: int) -> ClusterView:
    return ClusterView(
        "demo",
        "up",
        True,
        (),
        "/state",
        url="http://127.0.0.1:8010",
        model="m",
        created=NOW - 109,
        processes=engines,
        links=links,
        totals=Totals(**totals),
    )


def table(of: ClusterView, heading: str) -> list[str]:
    """The lines of one table."""
    paragraphs = status_text(of, now=NOW).split("\n\n")
    return next(text for text in paragraphs if text.startswith(heading)).splitlines()


def test_a_healthy_cluster_word_for_word() -> None:
    shown = view(
        engine("p0", kv_blocks=4096),
        engine("d0", kv_blocks=4096, in_flight=1, kv_blocks_used=3),
        links=(
            LinkStatus("p0", "d0", "warm", transfers=518, last_beat=NOW - 2.2, latency_s=0.097),
        ),
        finished=516,
        in_flight=1,
        output_tokens=16512,
    )
    assert (
        status_text(shown, now=NOW)
        == """\
cluster demo: healthy, 1 min 49 s   http://127.0.0.1:8010   model m

NAME  ROLE     NODE  STATE  SINCE      PID  IN FLIGHT  KV BLOCKS  DETAIL
p0    prefill  here  ready  1 min 4 s  70   0          0/4096
d0    decode   here  ready  1 min 4 s  70   1          3/4096

LINK   STATE  LAST BEAT  LATENCY  TRANSFERS  FAILED  MISMATCHES  EXPIRED  DETAIL
p0→d0  warm   2.2 s ago  97 ms    518        0       0           0

requests: 1 in flight, 516 finished, 0 failed, 0 aborted; 16512 output tokens; 0 KV hand-overs held"""
    )


def test_what_an_engines_connector_has_reported_is_told_where_there_is_any() -> None:
    rows = table(
        view(
            engine("p0", "restarted 1 time", kv_expiries=1),
            engine("p1"),
            engine("d0", kv_failures=3, kv_expiries=2),
        ),
        "NAME",
    )
    assert [row[65:].strip() for row in rows[1:]] == [
        "restarted 1 time; 1 lease of KV",
        "blocks ran out",
        "",
        "3 KV transfers failed; 2 leases of",
        "KV blocks ran out",
    ]


def test_of_an_engine_that_is_started_by_hand_the_generation_is_told() -> None:
    by_hand = engine("d0", "is started by hand", Observation("never"), generation=3)
    assert table(view(by_hand), "NAME")[1].endswith("is started by hand; generation 3")
    first = engine("d0", "is started by hand", Observation("never"))
    assert table(view(first), "NAME")[1].endswith("is started by hand")


def test_links_tell_beats_failures_mismatches_and_their_prefills_expiries() -> None:
    rows = table(
        view(
            engine("p0", kv_expiries=4),
            engine("p1"),
            engine("d0"),
            links=(
                LinkStatus(
                    *("p0", "d0", "down"),
                    failures=2,
                    mismatches=1,
                    last_beat=NOW - 80,
                    latency_s=1.5,
                    reason="decode does not read what prefill wrote: token 3 is 17, alone 99",
                ),
                LinkStatus("p1", "d0", "cold"),
            ),
        ),
        "LINK",
    )
    assert rows == [
        "LINK   STATE  LAST BEAT       LATENCY  TRANSFERS  FAILED  MISMATCHES  EXPIRED  DETAIL",
        "p0→d0  down   1 min 20 s ago  1500 ms  0          2       1           4        decode does not read",
        "                                                                               what prefill wrote:",
        "                                                                               token 3 is 17, alone",
        "                                                                               99",
        "p1→d0  cold   never                    0          0       0           0",
    ]


def test_a_link_that_is_down_tells_how_many_proofs_it_has_passed() -> None:
    down = LinkStatus("p0", "d0", "down", reason="wrong", proofs=2)
    shown = " ".join(" ".join(table(view(links=(down,)), "LINK")[1:]).split())
    assert shown == "p0→d0 down never 0 0 0 wrong; proofs in a row since: 2"
    warm = LinkStatus("p0", "d0", "warm", reason="", proofs=2)
    assert "proofs" not in status_text(view(links=(warm,)), now=NOW)


def test_long_reasons_stay_within_the_width_and_lose_no_word() -> None:
    reason = "its connections are gone; " * 12
    shown = view(
        engine("prefill-with-a-long-name-0", reason),
        links=(LinkStatus("prefill-with-a-long-name-0", "d0", "stale", reason=reason),),
    )
    lines = status_text(shown, now=NOW).splitlines()
    assert max(map(len, lines)) <= WIDTH + 20, "a name may be longer than there is room for"
    assert " ".join(lines).count("gone;") == 24


def test_what_was_saved_from_failures_is_told_where_there_is_any() -> None:
    text = status_text(view(redone=2, alone=1), now=NOW)
    assert text.endswith("\nafter failures: 2 redone, 1 computed by decode alone")
    assert "after failures" not in status_text(view(), now=NOW)


def test_json_has_all_of_it() -> None:
    shown = view(
        engine("p0", generation=2, kv_expiries=4, kv_failures=1),
        links=(LinkStatus("p0", "d0", "warm", failures=3),),
        continued=5,
    )
    known = json.loads(status_json(shown))
    (process,), (link,) = known["processes"], known["links"]
    instance = process["instance"]
    assert (instance["generation"], instance["kv_expiries"], instance["kv_failures"]) == (2, 4, 1)
    assert (link["failures"], known["totals"]["continued"]) == (3, 5)


def test_columns_without_a_width_never_wrap() -> None:
    assert columns([("A", "B"), ("1", "x " * 100)])[1] == "1  " + ("x " * 100).strip()


def test_requests_that_wanted_one_engine_are_counted_where_there_are_any() -> None:
    text = status_text(view(colocated=3), now=NOW)
    assert text.endswith("\ncolocated, as their clients asked: 3")
    assert "colocated" not in status_text(view(), now=NOW)
