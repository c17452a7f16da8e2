"""Log probabilities as the installed vLLM encodes them are read, small and large."""

from __future__ import annotations

import pytest

from fakes.engine import logprobs
from vdisagg.control import wire

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore"),  # vLLM's and PyTorch's own, as they are imported
]


@pytest.mark.parametrize("ids_type", ["int32", "int64"])
@pytest.mark.parametrize("count", [1, 3, 200], ids=["one", "inline", "frames"])
def test_what_vllm_encodes_is_read(count: int, ids_type: str) -> None:
    import numpy as np
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.serial_utils import MsgpackEncoder

    rows = range(count)
    lists = LogprobsLists(
        np.array([[i, i, i + 1] for i in rows], dtype=ids_type),
        np.array([[-0.5, -0.5, -1.5 - i] for i in rows], dtype="float32"),
        np.ones(count, dtype=ids_type),
        None,
    )
    output = EngineCoreOutput(request_id="a", new_token_ids=list(rows), new_logprobs=lists)
    payload, *frames = map(bytes, MsgpackEncoder().encode(EngineCoreOutputs(outputs=[output])))
    assert bool(frames) is (count == 200)
    (read,) = wire.decode_outputs(payload).outputs
    expected = [{i: -0.5, i + 1: -1.5 - i} for i in rows]
    assert wire.top_logprobs(read.new_logprobs, frames) == expected


def test_the_fake_engines_are_encoded_like_vllms() -> None:
    import numpy as np
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.serial_utils import MsgpackEncoder

    lists = LogprobsLists(
        np.array([[9, 8, 9]], dtype="int32"),
        np.array([[-3.1, -0.1, -3.1]], dtype="float32"),
        np.array([2], dtype="int32"),
        None,
    )
    (payload,) = MsgpackEncoder().encode(lists)
    assert bytes(payload) == bytes(logprobs([9, 8, 9], 3.0))


def test_an_engine_core_gives_log_probabilities_in_this_structure() -> None:
    import typing

    import vllm.v1.engine as engine
    from vllm.v1.outputs import LogprobsLists

    hints = typing.get_type_hints(engine.EngineCoreOutput)
    assert LogprobsLists in typing.get_args(hints["new_logprobs"])
    assert LogprobsLists._fields[:2] == ("logprob_token_ids", "logprobs")
