import signal

import pytest

from vdisagg.errors import Interrupted
from vdisagg.launch.interrupt import Interrupt


def test_a_signal_is_noted_and_raises_where_it_is_asked_for() -> None:
    with Interrupt(lambda _: None) as interrupt:
        interrupt.check()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted, match="interrupted by SIGTERM") as raised:
            interrupt.check()
    assert raised.value.exit_code == 143


def test_a_signal_that_an_undo_outlasts_still_stops_what_was_to_come_after_it() -> None:
    said: list[str] = []
    with Interrupt(said.append) as outer:
        with Interrupt(said.append) as inner:
            inner.undoing()
            signal.raise_signal(signal.SIGINT)
        assert said == ["still ending what was started; this ends by itself"]
        with pytest.raises(Interrupted, match="interrupted by SIGINT"):
            outer.check()


def test_the_usual_handlers_are_back_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt(lambda _: None), Interrupt(lambda _: None):
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
