"""What one run of `vdisagg bench` can be asked for, and which of it can't be."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from vdisagg.bench.arrivals import count_within
from vdisagg.bench.asks import MOST_REQUESTS
from vdisagg.bench.bodies import Endpoint
from vdisagg.bench.datasets.lengths import Lengths, exactly
from vdisagg.bench.datasets.load import INPUT_LEN, DataSet
from vdisagg.bench.datasets.mooncake import BLOCK_TOKENS
from vdisagg.bench.datasets.random import HIGHEST_ID, LOWEST_ID, Ids
from vdisagg.bench.report import Report
from vdisagg.bench.slo import Slo
from vdisagg.errors import UsageError

REQUESTS = 100  # where neither their number nor a duration is said: p99 means something


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Raises UsageError through `check`."""

    label: str = ""
    """What sets the run apart from the others of the same bench."""
    rate_per_s: float = math.inf
    """Infinite: all at once, or by a trace's own clock."""
    requests: int | None = None
    duration_s: float | None = None
    ramp_s: float = 0.0
    """For how long the rate rises to the asked one."""
    burstiness: float = 1.0
    max_in_flight: int | None = None
    seed: int = 0
    """Fixes when requests are sent."""
    workers: int | None = None
    """Processes that send them; None: as many as the load takes."""

    endpoint: Endpoint = "completions"
    dataset: Path | None = None
    """A file of conversations, or a trace; None: prompts are drawn."""
    input_len: int | Lengths = INPUT_LEN
    output_len: int | Lengths | None = None
    """None: as the file has it, or 200 where prompts are drawn."""
    prefix_len: int = 0
    turns: int = 1
    lowest_id: int = LOWEST_ID
    highest_id: int = HIGHEST_ID
    block_tokens: int = BLOCK_TOKENS
    """How many tokens a trace's hash id stands for."""
    prompt_seed: int | None = None
    """Fixes the prompts; None draws one, so that no run finds the last one's prompts cached."""
    reuse: bool = False
    """Prompts may come again: the seed of arrivals fixes them too, where no other is given, and a
    file with fewer requests than asked for begins again."""

    warmup: int = 2
    """Requests before the measured ones; on our own cluster more, until each pair has carried one.
    0: none at all."""
    running_usage: bool = True
    strict: bool = False
    """Send only what OpenAI's own API knows: answers may then be shorter than asked for."""
    extra: dict[str, object] = {}
    """More fields of each request's body."""
    slo: Slo | None = None
    max_failures: int | float = 0
    """How many requests may fail; a float: which share of them."""

    def check(self) -> None:
        """Raises UsageError naming the option that can't be."""
        if self.requests is not None and self.duration_s is not None:
            raise UsageError("say --num-requests or --duration, not both")
        if math.isinf(self.rate_per_s):
            if self.duration_s is not None and self.dataset is None:
                raise UsageError(
                    "--duration needs --rate: without a rate everything is sent at once"
                )
            if self.ramp_s:
                raise UsageError("--ramp needs --rate, the rate to rise to")
        if isinstance(self.max_failures, float) and not 0 <= self.max_failures <= 1:
            raise UsageError(
                f"--max-failures is {self.max_failures:g}; a share must be from 0 to 1 (0 % to 100 %)"
            )
        least = {
            "--num-requests": (self.requests, 1),
            "--input-len": (_least(self.input_len), 1),
            "--output-len": (_least(self.output_len), 1),
            "--max-concurrency": (self.max_in_flight, 1),
            "--lowest-id": (self.lowest_id, 0),
            "--warmup": (self.warmup, 0),
            "--workers": (self.workers, 1),
            "--block-tokens": (self.block_tokens, 1),
            "--max-failures": (self.max_failures, 0),
        }
        for option, (value, bound) in least.items():
            if value is not None and value < bound:
                raise UsageError(f"{option} is {value}; it must be {bound} or more")
        positive = {
            "--rate": self.rate_per_s,
            "--burstiness": self.burstiness,
            "--duration": self.duration_s,
        }
        for option, number in positive.items():
            if number is not None and not number > 0:
                raise UsageError(f"{option} is {number:g}; it must be above 0")
        if self.duration_s is not None and math.isinf(self.duration_s):
            raise UsageError("--duration is inf; a run has to end")
        if not 0 <= self.ramp_s < math.inf:
            raise UsageError(f"--ramp is {self.ramp_s:g}; it must be 0 or more seconds")
        if self.highest_id < self.lowest_id:
            raise UsageError(
                f"--highest-id {self.highest_id} is below --lowest-id {self.lowest_id}"
            )
        self.data().shape()
        self._check_size()

    def _check_size(self) -> None:
        """Requests are made before the first one is sent: of too many that takes hours, and the memory."""
        count = self.count() or 0
        if count > MOST_REQUESTS:
            said = (
                f"--rate {self.rate_per_s:g} for --duration {self.duration_s:g}"
                if self.duration_s is not None
                else "--num-requests"
            )
            raise UsageError(
                f"{said} is {count:,} requests; one run has {MOST_REQUESTS:,} at most, as all are "
                "made before the first is sent; next: ask for fewer"
            )

    def count(self) -> int | None:
        """How many requests: as asked, or as many as the rate gives in the duration. None: as many as
        the file has, or as its clock lets go in the duration."""
        if self.requests is not None:
            return self.requests
        if self.duration_s is not None and not math.isinf(self.rate_per_s):
            return count_within(self.duration_s, rate_per_s=self.rate_per_s, ramp_s=self.ramp_s)
        return REQUESTS if self.dataset is None else None

    def data(self) -> DataSet:
        """What requests are made of."""
        return DataSet(
            path=self.dataset,
            input_len=_lengths(self.input_len),
            output_len=None if self.output_len is None else _lengths(self.output_len),
            prefix_len=self.prefix_len,
            turns=self.turns,
            ids=Ids(self.lowest_id, self.highest_id),
            reuse=self.reuse,
            block_tokens=self.block_tokens,
        )

    def too_many_failed(self, report: Report) -> bool:
        """Whether more requests failed than may."""
        if isinstance(self.max_failures, float):
            return report.failed > self.max_failures * (report.failed + report.finished)
        return report.failed > self.max_failures


def parse_max_failures(text: str) -> int | float:
    """ "3" requests, or "1%" or "0.01" of them. Raises UsageError."""
    number = text.strip()
    try:
        if number.endswith("%"):
            return float(number[:-1]) / 100
        return float(number) if "." in number else int(number)
    except ValueError:
        raise UsageError(
            f"--max-failures {text}: a number of requests is expected, like 3, or a share, like 1%"
        ) from None


def _lengths(value: int | Lengths) -> Lengths:
    return exactly(value) if isinstance(value, int) else value


def _least(value: int | Lengths | None) -> int | None:
    return value.least if isinstance(value, Lengths) else value
