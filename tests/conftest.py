"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and hands that down: tests that send it would wait in vain."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
