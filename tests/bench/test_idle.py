import math
from typing import Any

import pytest

from vdisagg.bench.datasets.files import Form
from vdisagg.bench.idle import refuse_idle
from vdisagg.errors import UsageError


def refused(*said: str, form: Form | None = None, rate_per_s: float = math.inf) -> str:
    try:
        refuse_idle(set(said), form=form, rate_per_s=rate_per_s)
    except UsageError as error:
        return str(error).partition(" would change nothing")[0]
    return ""


@pytest.mark.parametrize(
    ("said", "more", "named"),
    [
        ({"--input-len", "--turns", "--output-len"}, {}, ""),
        ({"--input-len", "--turns", "--output-len"}, {"form": "trace"}, "--input-len, --turns"),
        ({"--prefix-len"}, {"form": "conversations"}, "--prefix-len"),
        ({"--block-tokens"}, {}, "--block-tokens"),
        ({"--block-tokens", "--lowest-id"}, {"form": "trace"}, ""),
        ({"--lowest-id"}, {"form": "conversations"}, "--lowest-id"),
        ({"--highest-id"}, {}, ""),
        ({"--burstiness"}, {}, "--burstiness"),
        ({"--burstiness", "--rate"}, {"rate_per_s": 2.0}, ""),
        ({"--burstiness", "--sweep"}, {}, ""),
        ({"--rate", "--sweep"}, {"rate_per_s": 2.0}, "--rate"),
        ({"--attain", "--slo"}, {}, "--attain"),
        ({"--attain", "--sweep"}, {}, "--attain"),
        ({"--attain", "--sweep", "--slo"}, {}, ""),
        ({"--attain", "--ratios", "--slo"}, {}, ""),
        ({"--name", "--url"}, {}, "--name"),
        ({"--strict", "--running-usage"}, {}, "--running-usage"),
    ],
)
def test_only_what_has_no_part_in_a_load_is_refused(
    said: set[str], more: dict[str, Any], named: str
) -> None:
    assert refused(*said, **more) == named


def test_all_of_it_is_told_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        refuse_idle({"--sweep", "--rate", "--turns"}, form="trace", rate_per_s=1.0)
    assert str(raised.value) == (
        "--turns would change nothing: the prompts are those of --dataset; --rate would change nothing: "
        "--sweep has the rates; next: leave out what has no part in it"
    )
