"""The mirrored structures stand at the same positions as in the installed vLLM."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from vdisagg.cluster import modes
from vdisagg.control import dummies, handover, wire

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore"),  # vLLM's and PyTorch's own, as they are imported
]


def test_the_installed_version_is_known() -> None:
    from vllm.version import __version__

    wire.check_version(__version__)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (wire.AddRequest, "EngineCoreRequest"),
        (wire.Output, "EngineCoreOutput"),
        (wire.Outputs, "EngineCoreOutputs"),
        (wire.UtilityOutput, "UtilityOutput"),
    ],
)
def test_every_position_is_the_same(ours: type[msgspec.Struct], theirs: str) -> None:
    import vllm.v1.engine as engine

    assert ours.__struct_fields__ == getattr(engine, theirs).__struct_fields__


@pytest.mark.parametrize(
    ("ours", "module", "theirs"),
    [
        (wire.Ready, "vllm.v1.engine", "EngineCoreReadyResponse"),
        (wire.SchedulerStats, "vllm.v1.metrics.stats", "SchedulerStats"),
        (wire.Addresses, "vllm.v1.engine.utils", "EngineZmqAddresses"),
        (wire.Welcome, "vllm.v1.engine.utils", "EngineHandshakeMetadata"),
    ],
)
def test_the_maps_that_we_read_have_our_keys(
    ours: type[msgspec.Struct], module: str, theirs: str
) -> None:
    import importlib

    fields = {f.name for f in dataclasses.fields(getattr(importlib.import_module(module), theirs))}
    assert set(ours.__struct_fields__) <= fields


def test_message_kinds_and_finish_reasons_are_the_same() -> None:
    from vllm.v1.engine import (
        EngineCoreEvent,
        EngineCoreEventType,
        EngineCoreRequestType,
        FinishReason,
    )
    from vllm.v1.engine.core import EngineCoreProc

    kinds = EngineCoreRequestType
    assert (
        kinds.ADD.value,
        kinds.ABORT.value,
        kinds.UTILITY.value,
    ) == (wire.ADD, wire.ABORT, wire.UTILITY)
    assert wire.ENGINE_CORE_DEAD == EngineCoreProc.ENGINE_CORE_DEAD
    assert (EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED) == (
        wire.QUEUED,
        wire.SCHEDULED,
    )
    assert wire.EngineEvent.__struct_fields__ == EngineCoreEvent.__struct_fields__
    assert not EngineCoreEvent.__struct_config__.array_like
    reasons = (wire.STOP, wire.LENGTH, wire.ABORTED, wire.ERROR, wire.REPETITION)
    assert reasons == tuple(int(reason) for reason in FinishReason)


def test_connector_statistics_have_our_keys() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

    assert set(wire.ConnectorStats.__struct_fields__) <= set(NixlKVConnectorStats().data)


@pytest.mark.parametrize("kind", ["completion", "chat_completion"])
def test_what_a_client_says_of_the_mode_stands_in_extra_args(kind: str) -> None:
    import importlib

    protocol = importlib.import_module(f"vllm.entrypoints.openai.{kind}.protocol")
    said = {"model": "m", "vllm_xargs": {modes.KEY: modes.COLOCATED}}
    if kind == "completion":
        request = protocol.CompletionRequest(prompt="p", **said)
    else:
        message = {"role": "user", "content": "p"}
        request = protocol.ChatCompletionRequest(messages=[message], **said)
    sampling = request.to_sampling_params(5, {})
    assert sampling.extra_args == {modes.KEY: modes.COLOCATED}


def test_the_sampling_parameters_that_we_touch_exist() -> None:
    from vllm.sampling_params import SamplingParams

    touched = {*handover.ONE_TOKEN, *handover.NOT_IN_PREFILL, "extra_args", "temperature"}
    assert touched <= set(SamplingParams.__struct_fields__)


def test_vllm_reads_what_we_write_and_we_read_what_vllm_writes() -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    request = EngineCoreRequest(
        request_id="a",
        prompt_token_ids=list(range(300)),
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=7, temperature=0.0, stop=["x"], seed=3),
        pooling_params=None,
        arrival_time=1.5,
        lora_request=None,
        cache_salt="salt",
        data_parallel_rank=None,
        priority=2,
    )
    (payload,) = MsgpackEncoder().encode(request)
    ours = wire.decode_add(bytes(payload))
    assert wire.decode_value(ours.prompt_token_ids) == request.prompt_token_ids
    back = MsgpackDecoder(EngineCoreRequest).decode([wire.encode(ours)])
    assert back == request

    probe = dummies.probe_request("p", [1, 2, 3], max_tokens=2, salt="s", now=2.0)
    read = MsgpackDecoder(EngineCoreRequest).decode([wire.encode(probe)])
    assert (read.prompt_token_ids, read.cache_salt) == ([1, 2, 3], "s")
    assert (read.sampling_params.max_tokens, read.sampling_params.temperature) == (2, 0.0)

    outputs = wire.Outputs(outputs=[wire.Output("a", [5], finish_reason=wire.ERROR)], timestamp=1.0)
    seen = MsgpackDecoder(EngineCoreOutputs).decode([wire.encode(outputs)])
    assert (seen.outputs[0].request_id, seen.outputs[0].new_token_ids) == ("a", [5])
    assert str(seen.outputs[0].finish_reason) == "error"
