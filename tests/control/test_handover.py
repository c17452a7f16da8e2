"""What the two legs' sampling parameters are, literally."""

from __future__ import annotations

from vdisagg.control import wire
from vdisagg.control.handover import HANDOVERS, Nixl, with_transfer, without_transfer

CLIENT = {
    "temperature": 0.7,
    "top_p": 0.9,
    "seed": 3,
    "n": 1,
    "max_tokens": 50,
    "min_tokens": 20,
    "stop": ["x"],
    "stop_token_ids": [2],
    "_all_stop_token_ids": {2},
    "ignore_eos": False,
    "repetition_detection": {"min_count": 3},
    "logprobs": 5,
    "logprob_token_ids": [1],
    "prompt_logprobs": 1,
    "prompt_logprob_token_ids": [1],
    "prompt_logprob_start": 0,
    "structured_outputs": {"json": "{}"},
    "extra_args": {"mine": 1},
}
HANDLE = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [[1, 2]]}


def test_a06_the_prefill_leg_is_the_request_capped_at_one_token_that_nothing_else_ends() -> None:
    assert Nixl().prefill(CLIENT) == {
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "n": 1,
        "max_tokens": 1,
        "min_tokens": 0,
        "ignore_eos": True,
        "structured_outputs": {"json": "{}"},
        "extra_args": {
            "mine": 1,
            "kv_transfer_params": {
                "do_remote_decode": True,
                "do_remote_prefill": False,
                "remote_engine_id": None,
                "remote_block_ids": None,
                "remote_host": None,
                "remote_port": None,
            },
        },
    }


def test_the_decode_leg_is_the_clients_request_with_prefills_handle() -> None:
    output = wire.Output("p:1", [7], kv_transfer_params=wire.raw(HANDLE))
    decode = Nixl().decode(CLIENT, output)
    assert decode is not None
    assert wire.decode_value(wire.raw(decode)) == {
        **CLIENT,
        "_all_stop_token_ids": [2],
        "extra_args": {"mine": 1, "kv_transfer_params": HANDLE},
    }


def test_a_prefill_leg_without_a_handle_gives_no_decode_leg() -> None:
    assert Nixl().decode(CLIENT, wire.Output("p:1", [7])) is None


def test_a_handle_that_stands_in_for_another_differs_in_the_request_and_names_no_block() -> None:
    address = {"remote_engine_id": "e", "remote_host": "h", "remote_port": 5, "tp_size": 2}
    sample = {**address, "do_remote_prefill": True, "remote_block_ids": [[1, 2]]}
    made = Nixl().stand_in(wire.raw({**sample, "remote_request_id": "p:1"}), "p:2")
    assert wire.decode_value(made) == {
        **address,
        "do_remote_prefill": True,
        "remote_block_ids": [],
        "remote_request_id": "p:2",
    }


def test_the_clients_parameters_are_not_changed() -> None:
    before = {**CLIENT, "extra_args": {"mine": 1}}
    Nixl().prefill(CLIENT)
    Nixl().decode(CLIENT, wire.Output("p:1", [7], kv_transfer_params=wire.raw(HANDLE)))
    without_transfer({**CLIENT, "extra_args": {"kv_transfer_params": 1}})
    assert before == CLIENT


def test_what_a_connector_would_obey_is_taken_out_and_the_rest_stays() -> None:
    extra = {"kv_transfer_params": HANDLE, "ec_transfer_params": HANDLE, "mine": 1}
    assert without_transfer({"seed": 3, "extra_args": extra}) == {
        "seed": 3,
        "extra_args": {"mine": 1},
    }
    assert without_transfer({"seed": 3, "extra_args": {"kv_transfer_params": HANDLE}}) == {
        "seed": 3,
        "extra_args": None,
    }


def test_parameters_without_a_transfer_pass_untouched() -> None:
    for sampling in ({"seed": 3}, {"extra_args": None}, {"extra_args": {"mine": 1}}):
        assert without_transfer(sampling) is sampling


def test_a_transfer_is_added_beside_what_the_client_said() -> None:
    assert with_transfer({"seed": 3, "extra_args": None}, 1) == {
        "seed": 3,
        "extra_args": {"kv_transfer_params": 1},
    }


def test_every_connector_that_a_topology_may_name_has_a_handover() -> None:
    from vdisagg.plan import connectors

    for name in HANDOVERS:
        connectors.find(name)
    assert set(HANDOVERS) == set(connectors._BY_NAME)
