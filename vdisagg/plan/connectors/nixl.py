"""NIXL: decode engines pull KV blocks out of prefill engines' memory.

An engine has one side channel, on which it tells its memory layout to its peers; it stands in the
scheduler, so tensor and pipeline ranks share it. vLLM 0.32 listens on the port of the variable
plus the data-parallel index (NixlBaseConnectorScheduler.side_channel_port), and an instance has
data-parallel size 1: one port. The transfers' own ports are chosen by UCX.
"""

from __future__ import annotations

from vdisagg.plan.model import Address, Role

_KV_ROLE: dict[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}


class Nixl:
    """See plan/connectors/__init__.py for what each method owes."""

    def ports_needed(self) -> int:
        return 1

    def settings(self, role: Role, *, device: str, lease_s: float) -> dict[str, object]:
        settings: dict[str, object] = {
            "kv_connector": "NixlConnector",
            "kv_role": _KV_ROLE[role],
            # vLLM's default today. With `recompute` a decode engine would compute prompts on its own
            # account, and hide that a link is broken.
            "kv_load_failure_policy": "fail",
            # Prefill keeps blocks for so long, decode renews by two thirds of it: both have to know.
            "kv_connector_extra_config": {"kv_lease_duration": int(lease_s)},
        }
        # Elsewhere vLLM's own default is right: the buffer is where the KV cache is.
        return settings | ({"kv_buffer_device": "cpu"} if device == "cpu" else {})

    def environment(self, address: Address) -> dict[str, str]:
        return {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": address.host,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(address.port),
        }
