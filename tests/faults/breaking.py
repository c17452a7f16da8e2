"""Breaks what a cell of the matrix breaks between machines, and mends it again."""

from __future__ import annotations

from faults.node_cells import NodeCell
from hosts.network import Host


def do(cell: NodeCell, host: Host, other: Host, controllers: Host, *, broken: bool) -> None:
    """Break it (or mend it) at `host`, the cell's instance's.

    other: to which the data path is cut; controllers: where the controller is.
    """
    if cell.what == "node":
        (host.cut if broken else host.restore)()
    elif cell.what == "data path":
        (host.lose_sight if broken else host.regain_sight)(other)
    elif cell.what == "ssh":
        _do_ssh(cell, host, broken=broken)
    elif cell.fault == "kill -9":
        if broken:  # a reset is mended by who dials again
            _reset(host, controllers)
    else:
        (host.lose_sight if broken else host.regain_sight)(controllers)
        if broken and cell.fault == "long black hole":
            _reset(controllers, host)  # as after a quarter of an hour, when TCP gives up


def _reset(host: Host, peer: Host) -> None:
    ended = host.reset(peer)
    assert ended >= 2, f"{ended} connections were there to be reset"


def _do_ssh(cell: NodeCell, host: Host, *, broken: bool) -> None:
    sshd = host.sshds[0]
    if cell.fault == "kill -9":
        (sshd.stop if broken else sshd.start)()
    elif cell.fault == "stop":
        (sshd.freeze if broken else sshd.thaw)()
    elif cell.fault == "stop for good":
        if broken:
            sshd.freeze()
        else:
            sshd.stop()
            sshd.start()
    elif broken:
        ends = host.peers_of(sshd.port) if cell.fault == "forgotten connection" else None
        assert ends != [], "no connection was there to be forgotten"
        host.swallow(sshd.port, ends=ends)
    else:
        host.unswallow()
        if cell.fault == "forgotten connection":
            sshd.drop_connections()  # with nothing to say, it would not learn that nobody is there
