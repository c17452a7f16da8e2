"""Our sockets to the front end: attached freshly, taken over, and through connections that break."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from socket import create_server

import pytest

from fakes.front import FakeFront
from fakes.middle import Middle
from vdisagg.control import front as front_module
from vdisagg.control import wire
from vdisagg.control.channel import ANSWER, EMPTY_OUTPUTS
from vdisagg.control.front import Front
from vdisagg.control.sockets import Sockets
from vdisagg.errors import ProtocolError
from vdisagg.plan.model import Address

PATIENCE_S = 60.0
READY = wire.encode({"max_model_len": 8})


def free() -> Address:
    with create_server(("127.0.0.1", 0)) as server:
        return Address("127.0.0.1", server.getsockname()[1])


class Playing:
    """A controller around one Front: notes what it hears, and sends outputs again when asked to."""

    def __init__(self, handshake: Address, *, said: dict[int, list[bytes]] | None = None) -> None:
        self.heard: list[object] = []
        self.seen: dict[int, list[str]] = {}
        self.said = said if said is not None else {}
        self.offset_s = 0.0
        self.sockets = Sockets()
        self.front = Front(self.sockets, handshake, self, clock=self.now)

    def now(self) -> float:
        return time.monotonic() + self.offset_s

    def turn(self) -> None:
        self.sockets.turn()
        self.front.tick(self.now())

    def say(self, api: int, request: str, token: int) -> None:
        """One token, numbered and kept."""
        said = self.said.setdefault(api, [])
        said.append(wire.encode(wire.Outputs(outputs=[wire.Output(request, [token])])))
        self.front.send(api, said[-1], seq=len(said))

    def front_attached(self, api_servers: int) -> None:
        self.heard.append(("attached", api_servers))

    def front_message(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes]) -> None:
        if kind == wire.ADD:
            self.seen.setdefault(api, []).append(wire.decode_add(payload).request_id)
        elif kind == wire.ABORT:
            raise ProtocolError("an abort that makes no sense")
        else:
            self.heard.append((kind, payload, frames))

    def front_resumed(self, api: int, last: int) -> None:
        self.heard.append(("resumed", api, last))
        for seq, payload in enumerate(self.said.get(api, [])[last:], last + 1):
            self.front.send(api, payload, seq=seq)

    def front_fault(self, reason: str) -> None:
        self.heard.append(reason)

    def front_lost(self) -> None:
        self.heard.append("lost")
        self.front.hang_up()


class Scene:
    """A front end, and controllers that play its engine one after the other; one thread drives all."""

    def __init__(self) -> None:
        self.handshake = free()
        self.fake = FakeFront(self.handshake, api_servers=2)
        self.controllers: list[Playing] = []
        self.relays: list[Middle] = []

    def controller(self, said: dict[int, list[bytes]] | None = None) -> Playing:
        self.controllers.append(Playing(self.handshake, said=said))
        return self.controllers[-1]

    def dialled(self) -> Playing:
        controller = self.controller()
        controller.front.dial(READY)
        attaching = threading.Thread(target=self.fake.attach)
        attaching.start()
        while attaching.is_alive():
            controller.turn()
        self.until(lambda: ("attached", 2) in controller.heard)
        return controller

    def taken_over(self, dead: Playing) -> Playing:
        """A new controller with the journal of one that has died."""
        controller = self.controller(dead.said)
        assert dead.front.addresses
        addresses, received = dead.front.addresses, dead.front.received
        dead.sockets.close()
        self.controllers.remove(dead)
        controller.front.attach(addresses, received)
        return controller

    def relayed(self, addresses: wire.Addresses) -> wire.Addresses:
        """The same front end, behind a relay for each socket."""

        def behind(where: str) -> str:
            self.relays.append(Middle(Address("127.0.0.1", int(where.rpartition(":")[2]))))
            return self.relays[-1].address.zmq

        inputs = [behind(where) for where in addresses.inputs]
        return wire.Addresses(inputs, [behind(where) for where in addresses.outputs])

    def turn(self) -> None:
        for controller in self.controllers:
            controller.turn()
        self.fake.read()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            self.turn()

    def close(self) -> None:
        for controller in self.controllers:
            controller.sockets.close()
        for relay in self.relays:
            relay.close()
        self.fake.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def test_a_fresh_front_end_is_dialled_and_speaks_from_number_one(scene: Scene) -> None:
    controller = scene.dialled()
    assert controller.front.addresses
    assert len(controller.front.addresses.inputs) == 2
    first, second = scene.fake.add([1], api=1), scene.fake.add([1], api=1)
    scene.until(lambda: controller.seen == {1: [first, second]})
    assert controller.front.received == (0, 2)
    controller.say(1, first, 7)
    scene.until(lambda: scene.fake.tokens(first) == [7])
    assert scene.fake.tensors == [], "the number is no tensor"
    assert "resumed" not in str(controller.heard)


def test_outputs_without_a_number_and_messages_without_one_pass_as_before(scene: Scene) -> None:
    controller = scene.dialled()
    payload = wire.encode(wire.Outputs(outputs=[wire.Output("r", [7])]))
    controller.front.send(0, payload, [b"tensor"])
    scene.until(lambda: scene.fake.tokens("r") == [7])
    assert scene.fake.tensors == [[b"tensor"]]
    scene.fake.send_raw(wire.UTILITY, b"call", b"tensor")
    scene.until(lambda: (wire.UTILITY, b"call", [b"tensor"]) in controller.heard)
    controller.front.send(7, payload)


def test_a_new_controller_gets_what_the_dead_one_had_not_read_and_sends_what_was_lost(
    scene: Scene,
) -> None:
    dead = scene.dialled()
    names = [scene.fake.add([1], api=n % 2, frames=[b"tensor"]) for n in range(6)]
    scene.until(lambda: sum(map(len, dead.seen.values())) == 6)
    for token in range(40):
        dead.say(0, names[0], token)
    names += [scene.fake.add([1], api=n % 2) for n in range(6)]
    alive = scene.taken_over(dead)
    names += [scene.fake.add([1], api=n % 2) for n in range(6)]
    scene.until(lambda: sum(map(len, alive.seen.values())) == 12)
    for api in (0, 1):
        assert dead.seen[api] + alive.seen[api] == names[api::2]
    scene.until(lambda: scene.fake.tokens(names[0]) == list(range(40)))
    attached = alive.heard.index(("attached", 2))
    assert attached == 0
    assert {event[:2] for event in alive.heard[1:]} == {("resumed", 0), ("resumed", 1)}  # type: ignore[index]
    alive.say(0, names[0], 40)
    scene.until(lambda: scene.fake.tokens(names[0]) == list(range(41)))
    assert alive.front.addresses == dead.front.addresses or alive.front.addresses


def test_a_message_that_makes_no_sense_counts_as_seen(scene: Scene) -> None:
    dead = scene.dialled()
    scene.fake.abort("r")
    scene.until(lambda: "an abort that makes no sense" in dead.heard)
    assert dead.front.received == (1, 0)
    alive = scene.taken_over(dead)
    name = scene.fake.add([1])
    scene.until(lambda: alive.seen == {0: [name]})
    assert "an abort that makes no sense" not in alive.heard


def test_connections_that_break_at_random_lose_and_double_nothing(scene: Scene) -> None:
    rng = random.Random(3)
    first = scene.dialled()
    assert first.front.addresses
    addresses = scene.relayed(first.front.addresses)
    first.sockets.close()
    scene.controllers.remove(first)
    controller = scene.controller()
    controller.front.attach(addresses, [0, 0])
    scene.until(lambda: {("resumed", 0, 0), ("resumed", 1, 0)} <= set(controller.heard))
    names = []
    for token in range(300):
        names.append(scene.fake.add([1], frames=[b"x" * 5000]))
        controller.say(0, "answer", token)
        if rng.random() < 0.05:
            scene.turn()
            rng.choice(scene.relays).reset()
        if rng.random() < 0.5:
            scene.turn()
    controller.front.health(True)
    scene.until(lambda: controller.seen.get(0) == names)
    scene.until(lambda: scene.fake.tokens("answer") == list(range(300)))
    assert "lost" not in controller.heard


def test_a_connection_that_does_not_come_back_is_lost_after_a_second(scene: Scene) -> None:
    controller = scene.dialled()
    scene.fake.close()
    scene.fake = FakeFront(free())
    server = controller.front._servers[0]
    scene.until(lambda: server.back_by is not None)
    assert "lost" not in controller.heard
    controller.offset_s += front_module.RETURN_S
    scene.until(lambda: "lost" in controller.heard)
    assert not controller.front.dialling
    assert controller.front.addresses is None
    controller.front.tick(controller.now())
    assert controller.heard.count("lost") == 1


def test_a_front_end_that_has_died_with_its_controller_is_lost_after_a_while(scene: Scene) -> None:
    controller = scene.controller()
    controller.front.attach(wire.Addresses([free().zmq], [free().zmq]), [0])
    assert controller.front.dialling
    controller.offset_s += front_module.ADOPT_S - 1
    controller.turn()
    assert controller.heard == []
    controller.offset_s += 1
    scene.until(lambda: controller.heard == ["lost"])


class Answering:
    """Knocks that have the answers that a test gives, and are counted."""

    def __init__(self) -> None:
        self.now = "pending"
        self.knocks: list[str] = []

    def __call__(self, address: str) -> Answering:
        self.knocks.append(address)
        return self

    def answer(self) -> str:
        return self.now

    def close(self) -> None:
        pass


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    made = Answering()
    monkeypatch.setattr(front_module, "Knock", made)
    return made


def adopting(scene: Scene) -> Playing:
    """A controller whose front end does not come back."""
    controller = scene.controller()
    controller.front.attach(wire.Addresses([free().zmq], [free().zmq]), [0])
    controller.offset_s += front_module.ADOPT_S
    controller.turn()
    return controller


def test_a_front_end_that_cant_be_reached_is_knocked_at_and_never_taken_for_dead(
    scene: Scene, answering: Answering
) -> None:
    controller = adopting(scene)
    for expected, answer in enumerate(["pending", "unreachable", "pending", "unreachable"]):
        answering.now = answer
        controller.turn()
        assert len(answering.knocks) == expected // 2 + 1
        controller.offset_s += front_module.KNOCK_S if answer == "unreachable" else 3600
        controller.turn()
    assert controller.heard == []


def adopted_where_somebody_listens(scene: Scene, answering: Answering) -> Playing:
    controller = adopting(scene)
    answering.now = "open"
    for _ in range(2):  # one to knock, one to hear
        controller.turn()
    return controller


def test_where_somebody_else_listens_the_front_end_is_gone_after_a_while(
    scene: Scene, answering: Answering
) -> None:
    controller = adopted_where_somebody_listens(scene, answering)
    controller.offset_s += 3600  # that nobody could be reached before says nothing
    controller.turn()
    answering.now = "unreachable"
    controller.turn()
    answering.now = "open"
    controller.offset_s += front_module.KNOCK_S
    for _ in range(2):
        controller.turn()
    assert controller.heard == []
    controller.offset_s += front_module.LISTEN_S
    scene.until(lambda: controller.heard == ["lost"])


def test_while_we_are_stopped_ourselves_nobody_listens_in_vain(
    scene: Scene, answering: Answering
) -> None:
    controller = adopted_where_somebody_listens(scene, answering)
    controller.offset_s += front_module.LISTEN_S
    controller.front.paused(front_module.LISTEN_S)
    for _ in range(2):
        controller.turn()
    assert controller.heard == []
    controller.offset_s += front_module.LISTEN_S
    scene.until(lambda: controller.heard == ["lost"])


def test_another_process_at_the_same_address_is_not_taken_for_the_front_end(scene: Scene) -> None:
    """It has sent less than we have seen."""
    dead = scene.dialled()
    controller = scene.controller()
    assert dead.front.addresses
    controller.front.attach(dead.front.addresses, [3, 0])
    scene.until(lambda: "lost" in controller.heard)


def test_messages_that_are_kept_no_longer_are_named(scene: Scene) -> None:
    dead = scene.dialled()
    scene.fake.channels[0]._most = 2
    names = [scene.fake.add([1]) for _ in range(5)]
    dead.sockets.close()
    scene.controllers.remove(dead)
    alive = scene.controller()
    assert dead.front.addresses
    alive.front.attach(dead.front.addresses, [0, 0])
    scene.until(lambda: alive.seen == {0: names[3:]})
    assert "API server 0: messages 1 to 3 are lost" in alive.heard
    assert alive.front.received == (5, 0)


def test_an_api_server_that_misses_outputs_of_which_nothing_is_left_is_told_so(
    scene: Scene,
) -> None:
    dead = scene.dialled()
    for token in range(3):
        dead.say(0, "r", token)
    scene.until(lambda: scene.fake.tokens("r") == [0, 1, 2])
    alive = scene.taken_over(dead)
    scene.until(lambda: ("resumed", 0, 3) in alive.heard)
    alive.front.send(0, wire.encode(wire.Outputs()), seq=4)
    assert "not kept" not in str(alive.heard)
    alive.front._servers[0].owed = 5
    alive.front.send(0, wire.encode(wire.Outputs()), seq=7)
    assert "API server 0: outputs 5 to 6 are not kept any longer; it will end" in alive.heard
    with pytest.raises(ProtocolError, match="outputs"):  # a death notice
        scene.until(lambda: False)


def test_health_is_told_on_change_and_once_a_second(scene: Scene) -> None:
    controller = scene.dialled()
    controller.front.health(False, "no link works")
    scene.until(lambda: all(scene.fake.health))
    assert [(h.ok, h.reason) for h in scene.fake.health] == [(False, "no link works")] * 2
    told = scene.fake.health
    controller.front.health(False, "no link works")
    controller.offset_s += front_module.HEALTH_S
    scene.until(lambda: all(h.at > t.at for h, t in zip(scene.fake.health, told, strict=True)))
    controller.front.health(True)
    scene.until(lambda: [h.ok for h in scene.fake.health] == [True, True])
    assert scene.fake.received == {}


def test_a_lost_last_output_is_sent_again_with_the_next_word_on_health(scene: Scene) -> None:
    controller = scene.dialled()
    controller.front.health(True)
    controller.say(0, "r", 1)
    scene.until(lambda: scene.fake.tokens("r") == [1])
    send, controller.front.send = controller.front.send, lambda *a, **k: None  # type: ignore[method-assign]
    controller.say(0, "r", 2)
    controller.front.send = send  # type: ignore[method-assign]
    controller.front._servers[0].sent = 2  # as if it had been sent, and lost on the way
    controller.offset_s += front_module.HEALTH_S
    scene.until(lambda: scene.fake.tokens("r") == [1, 2])
    assert ("resumed", 0, 1) in controller.heard


def test_the_silence_of_an_api_server_is_told_and_our_own_pause_is_none(scene: Scene) -> None:
    controller = scene.dialled()

    def silent_s() -> float:
        return controller.front.silent_s(controller.now())

    assert silent_s() == 0, "it may be starting yet"
    controller.front.health(True)
    scene.until(lambda: 0 < silent_s() < 5)
    controller.offset_s += 10
    assert silent_s() > 10
    controller.front.paused(10)
    assert silent_s() < 5
    controller.offset_s += 10
    assert silent_s() > 10
    scene.until(lambda: silent_s() < 5)


def test_an_api_server_that_has_asked_for_something_is_missed_though_it_never_answered(
    scene: Scene,
) -> None:
    controller = scene.dialled()
    scene.fake.add([1, 2])
    scene.until(lambda: controller.seen)
    controller.offset_s += 10
    assert controller.front.silent_s(controller.now()) > 9


def test_an_answer_that_makes_no_sense_is_a_fault(scene: Scene) -> None:
    controller = scene.dialled()
    scene.fake.send_raw(ANSWER, b"{")
    scene.until(lambda: any("an answer of the switches" in str(e) for e in controller.heard))


def test_a_front_end_without_the_switches_gets_an_empty_message() -> None:
    assert wire.decode_outputs(EMPTY_OUTPUTS) == wire.Outputs()
