"""Brings a cluster up: starts what its plan names, or what of it has died since; waits until it serves,
or undoes what it began.

The record is written before the first launch, and every process's directory is in it, so that
whoever comes after a `kill -9` of this command finds everything that it may have started.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from vdisagg.cluster import record
from vdisagg.cluster.record import Record
from vdisagg.cluster.snapshot import Observation, Progress, UpResult
from vdisagg.errors import Failure, LaunchFailed, Occupied, PlanConflict
from vdisagg.launch import far_controller, passage
from vdisagg.launch.background import at_once, failures, raise_all
from vdisagg.launch.casualties import casualties, is_deciding
from vdisagg.launch.ending import end_processes
from vdisagg.launch.foreign import refuse_foreign
from vdisagg.launch.interrupt import Interrupt
from vdisagg.launch.lookout import Lookout, by_node, observe_all, unreachable
from vdisagg.launch.preflight.check import refuse_errors
from vdisagg.launch.readiness import Casualty, Sighting, broken_links, casualty, progress
from vdisagg.launch.secrets import read_secrets
from vdisagg.launch.sight import ask_controller, is_healthy, log_files
from vdisagg.plan.commands import command_line
from vdisagg.plan.compare import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from vdisagg.cluster.admin import ControllerStatus
    from vdisagg.launch.preflight.check import Check
    from vdisagg.launch.runner import RunnerFor
    from vdisagg.plan.model import Address, Plan, Process

POLL_S = 0.2
LAST_LINES = 20
LOOK_LIMIT_S = 2.0  # the next look comes soon
SETTLE_S = 10.0  # a suspect is dead after 5 s, a restarted controller answers within 2
WHOLE_LIMIT_S = 6.0  # who is only slow to answer is well
UNREACHABLE_LIMIT_S = 60.0  # a cut that heals is over by then; the controller may hear of the rest
API_KEY = "VLLM_API_KEY"  # where the stock API server takes its key from


class Report(Protocol):
    """Where up tells how it goes. Nothing of it raises: an undo, too, is told."""

    def say(self, text: str) -> None:
        """One thing that the user should know."""

    def progress(self, entries: Sequence[Progress]) -> None:
        """How far everything has come; called several times a second."""


def up(
    plan: Plan,
    runner_for: RunnerFor,
    *,
    state_directory: Path,
    report: Report,
    runners_of: Callable[[Plan], RunnerFor] | None = None,
    check: Check | None = None,
    environment: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> UpResult:
    """Bring the planned cluster up and return once it serves; or adopt an interrupted up of it; or, where
    it is up, start those of its processes again that are dead or hang.

    `check` looks at the nodes before a whole cluster is launched. `runners_of`: for a recorded plan, whose
    nodes may be others. Raises ClusterBusy, PreflightFailed, PlanConflict, UsageError (a secret is
    missing), LaunchFailed, Interrupted, and Failure when another topology runs under this name, or a
    node cannot be reached. Whatever it raises, what this call started has been ended again, and nothing
    else.
    """
    with (
        Interrupt(report.say) as interrupt,
        record.Lock(state_directory, f"vdisagg up {plan.topology_file}", clock=now),
    ):
        begun = clock()
        earlier = _living_record(
            plan, runner_for, runners_of, state_directory, report, interrupt.check
        )
        launch = _Launch(earlier, plan, runner_for, state_directory, report, interrupt, clock, now)
        mends = earlier is not None and earlier.phase == "up"
        if mends:
            launch.mend()
            if launch.is_whole():
                return _result(launch.plan, state_directory, already=True, elapsed_s=0.0)
        elif earlier is not None:
            launch.adopt()
        else:
            refuse_foreign(plan, runner_for, now=now, tick=interrupt.check)
        secrets = read_secrets(launch.missing(), environment)
        if not mends:  # the nodes were fit when the cluster came up, and it is in use
            launch.check_nodes(check)
        launch.test_ports()
        try:
            launch.start_missing(secrets)
            launch.wait_until_ready()
            interrupt.check()
            launch.write("up")
        except BaseException:
            launch.undo()
            raise
        return _result(
            launch.plan,
            state_directory,
            adopted=() if mends else tuple(launch.adopted),
            restarted=tuple(p.name for p in launch.missing()) if mends else (),
            elapsed_s=clock() - begun,
        )


def _living_record(
    plan: Plan,
    runner_for: RunnerFor,
    runners_of: Callable[[Plan], RunnerFor] | None,
    state_directory: Path,
    report: Report,
    tick: Callable[[], None],
) -> Record | None:
    """The record of what runs, fit to be mended or to be adopted; None to start afresh."""
    earlier = record.read(state_directory)
    if earlier is None:
        return None
    name = earlier.plan.name
    runners = runner_for if runners_of is None else runners_of(earlier.plan)
    observations = observe_all(earlier.plan, runners, earlier.processes, tick=tick)
    lost = unreachable(earlier.plan, observations)
    if not lost and not any(seen.members or seen.guard_alive for seen in observations.values()):
        report.say(f"nothing of the last run of {name} is left; starting afresh")
        for left in far_controller.forget((earlier.plan.controller,), runners):
            report.say(f"left behind: {left}")
        record.remove(state_directory)
        return None
    if earlier.plan.digest != plan.digest:
        changed = differences(earlier.plan.topology, plan.topology) or ["the topology differs"]
        raise Failure(
            "\n".join(
                (
                    f"cluster {name} runs with another topology than {plan.topology_file}:",
                    *(f"  {line}" for line in changed),
                    f"next: run `vdisagg down --name {name}` first",
                )
            )
        )
    if lost:
        what = "" if earlier.phase == "up" else "what an earlier up left of "
        raise Failure(
            "\n".join(
                (
                    f"{what}cluster {name} cannot be seen:",
                    *(f"  {line}" for line in lost),
                    f"next: up again once these nodes answer, or `vdisagg down --name {name}`",
                )
            )
        )
    return earlier


def _result(
    plan: Plan,
    state_directory: Path,
    *,
    elapsed_s: float,
    already: bool = False,
    adopted: tuple[str, ...] = (),
    restarted: tuple[str, ...] = (),
) -> UpResult:
    return UpResult(
        name=plan.name,
        url=plan.front_end.url,
        model=plan.front_end.served_model_name,
        state_file=str(state_directory / record.RECORD_FILE),
        log_files=log_files(plan),
        already=already,
        adopted=adopted,
        restarted=restarted,
        elapsed_s=elapsed_s,
        needs_key=any(s.variable == API_KEY for s in plan.front_end.process.secrets),
    )


class _Launch:
    """One up at work: what it has adopted, what it has started, and how to undo the latter."""

    def __init__(
        self,
        earlier: Record | None,
        plan: Plan,
        runner_for: RunnerFor,
        state_directory: Path,
        report: Report,
        interrupt: Interrupt,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self.plan = plan if earlier is None else earlier.plan
        self.adopted: dict[str, Observation] = {}
        self._launched: list[Process] = []
        self._runner_for = runner_for
        self._state_directory = state_directory
        self._report = report
        self._interrupt = interrupt
        self._clock = clock
        self._now = now
        self._begun = clock()
        self._record = earlier or Record(self.plan, now(), os.getpid(), "starting", {})
        self._recording = threading.Lock()
        self._lookout = Lookout(self.plan, runner_for, self._record.processes, tick=interrupt.check)
        self._lost_at: dict[str, float] = {}
        """Since when nothing has been heard of a process that is not ready either."""
        self._broken: list[str] = []
        """Links that fail their proof."""
        self._left: dict[str, Observation] = {}
        """What there was of each process before we began, living or not."""
        self._unheard: set[str] = set()
        """Instances that the controller may call dead: it means what they were before we began."""
        self._mends = False

    def adopt(self) -> None:
        """Go on from an up that ended half-way: what runs is kept."""
        earlier = self._record
        self._left = self._what_there_is()
        self.adopted = {n: seen for n, seen in self._left.items() if seen.state == "running"}
        self._record = msgspec.structs.replace(earlier, by_pid=os.getpid())
        age = max(0.0, self._now() - earlier.created)
        kept = ", ".join(f"{name} (pid {seen.pid})" for name, seen in self.adopted.items())
        self._report.say(
            f"an earlier `vdisagg up` (pid {earlier.by_pid}, {age:.0f} s ago) ended half-way; "
            f"going on from it, keeping {kept or 'nothing'}"
        )

    def mend(self) -> None:
        """Keep what runs well of a cluster that is up, so that the rest is missing."""
        self._mends = True
        controller = self._settled_controller()
        self._left = self._what_there_is()
        found = casualties(self.plan, self._left, controller)
        self.adopted = {n: seen for n, seen in self._left.items() if n not in found}
        heard = controller.instances if controller is not None else []
        self._unheard = {*found, *(i.name for i in heard if i.state in ("suspect", "dead"))}
        logs = log_files(self.plan)
        if found:
            lines = (f"  {name}: {why}; its log: {logs[name]}" for name, why in found.items())
            first = f"cluster {self.plan.name} is up, but not whole; starting again:"
            self._report.say("\n".join((first, *lines)))
        for name, seen in self.adopted.items():
            if not seen.guard_alive:
                gone = f"{name} runs on, but its guard (pid {seen.guard_pid}) is gone"
                self._report.say(f"{gone}: nobody starts it again when it fails")
            elif seen.lost:
                self._report.say(f"{name}: {seen.how_lost}")

    def _what_there_is(self) -> dict[str, Observation]:
        started, tick = self._record.processes, self._interrupt.check
        return observe_all(self.plan, self._runner_for, started, tick=tick)

    def _settled_controller(self) -> ControllerStatus | None:
        """What the controller says once it has made up its mind about engines that it lost sight of."""
        deadline = self._clock() + SETTLE_S
        while True:
            self._interrupt.check()
            controller, _ = ask_controller(self.plan, self._state_directory, self._runner_for)
            runner = self._runner_for(self.plan.controller.node)
            runs = controller is not None or runner.observe(self.plan.controller).state == "running"
            if not is_deciding(controller) or not runs or self._clock() >= deadline:
                return controller
            time.sleep(POLL_S)

    def is_whole(self) -> bool:
        """Whether nothing is missing, and all serves at this moment."""
        if self.missing():
            return False
        entries = progress(self.plan, self._sighting(self._left, WHOLE_LIMIT_S), 0.0)
        whole = all(entry.done for entry in entries)
        if not whole:
            self._report.say(f"cluster {self.plan.name} is up, but not ready; waiting for it")
        return whole

    def missing(self) -> list[Process]:
        """What is to be started, in launch order."""
        return [p for p in self.plan.processes() if p.name not in self.adopted]

    def write(self, phase: Literal["starting", "up"]) -> None:
        """Write the record in its present form."""
        self._record = msgspec.structs.replace(self._record, phase=phase)
        record.write(self._state_directory, self._record)

    @property
    def _phase(self) -> Literal["starting", "up"]:
        """Of the record while we are at work."""
        return "up" if self._mends else "starting"

    def check_nodes(self, check: Check | None) -> None:
        """Raises PreflightFailed when the nodes are not fit, and Interrupted."""
        if check is not None:
            tick = self._interrupt.check
            findings = check(self.plan, running=bool(self.adopted), tick=tick)
            tick()
            refuse_errors(self.plan, findings, self._report.say)

    def test_ports(self) -> None:
        """Raises PlanConflict that names every port that somebody else holds, and who; and Interrupted."""
        asked = {
            node: partial(self._taken_ports, node, self.plan.ports_of(node))
            for node in by_node(self.plan.processes())
        }
        found = at_once(asked, tick=self._interrupt.check)
        raise_all(failures(found), LaunchFailed)
        taken = [line for lines in found.values() if isinstance(lines, list) for line in lines]
        if taken:
            taken.append("next: end that process, or set other ports in the topology")
            raise PlanConflict("\n".join(taken))

    def _taken_ports(self, node: str, wanted: dict[Address, str]) -> list[str]:
        nodes = {process.name: process.node for process in self.plan.processes()}
        own = {
            f"pid {pid} "
            for name, seen in self._left.items()
            if nodes[name] == node
            for pid in seen.members
        }
        return [
            f"{address} ({wanted[address]}) is taken: {who}"
            for address, who in self._runner_for(node).busy_ports(wanted).items()
            if not any(who.startswith(pid) for pid in own)
        ]

    def start_missing(self, secrets: dict[str, dict[str, str]]) -> None:
        """Start what is not adopted, on all nodes at once; the record is on disk before the first.

        What fails on one node does not hold up the others; all failures are raised as one.
        """
        self.write(self._phase)
        by_hand = [instance.process for instance in self.plan.manual_instances()]
        work = {
            node: partial(self._start_on_node, processes, secrets)
            for node, processes in by_node(self.missing()).items()
        }
        self._show_start()
        outcomes = at_once(work, tick=self._show_start)
        self._interrupt.check()
        raise_all(failures(outcomes), LaunchFailed)
        for process in by_hand if not self._mends else ():
            self._report.say(f"start {process.name} on {process.node}:\n{command_line(process)}")

    def _show_start(self) -> None:
        self._look({})

    def _start_on_node(self, processes: list[Process], secrets: dict[str, dict[str, str]]) -> None:
        for process in processes:
            self._interrupt.check()
            self._start(process, secrets[process.name])

    def _start(self, process: Process, secrets: dict[str, str]) -> None:
        runner = self._runner_for(process.node)
        grace_s = self.plan.timeouts.stop_s
        if self._left:
            # A late guard of the earlier up may still be on its way, or about to start it again, and
            # members of a group whose leader has died may live.
            runner.stop(process, grace_s, self._record.processes)
        self._launched.append(process)  # before the start: undo must cover one that fails half-way
        files = far_controller.files(self._record) if self._travels(process) else {}
        try:
            started = runner.start(process, secrets, grace_s, files, self.plan.restart_of(process))
        except Occupied:  # what lives there is another launch's, and not to be undone
            self._launched.remove(process)
            raise
        with self._recording:
            self._record.processes[process.name] = started
            self.write(self._phase)

    def _travels(self, process: Process) -> bool:
        return process.kind == "controller" and far_controller.is_far(self.plan)

    def wait_until_ready(self) -> None:
        """Raises LaunchFailed when a process dies, or the deadline passes."""
        deadline = self._begun + self.plan.timeouts.launch_s
        while True:
            self._interrupt.check()
            entries, lost = self._look(self._lookout.glance())
            if lost is not None:
                raise LaunchFailed(self._obituary(lost))
            self._refuse_lost(entries)
            self._refuse_broken()
            if all(entry.done for entry in entries):
                return
            if self._clock() >= deadline:
                raise LaunchFailed(self._overdue(entries))
            time.sleep(POLL_S)

    def _look(self, observations: dict[str, Observation]) -> tuple[list[Progress], Casualty | None]:
        seen = self._sighting(observations)
        self._broken = broken_links(seen)
        entries = progress(self.plan, seen, self._clock() - self._begun)
        self._report.progress(entries)
        # A kept process of a cluster that is up may fail and come back: that is its guard's affair.
        kept = observations if self._mends else self.adopted
        ends = {name: kept[name].ends for name in self.adopted if name in kept}
        return entries, casualty(self.plan, seen, ends)

    def _refuse_broken(self) -> None:
        """Raises LaunchFailed when the KV cache does not arrive as it was written."""
        if self._broken:
            lines = (f"  link {line}" for line in self._broken)
            raise LaunchFailed(
                "\n".join(
                    (
                        "the KV cache does not arrive intact, so answers would be wrong:",
                        *lines,
                        "next: see that all engines load the same weights and have the same settings",
                    )
                )
            )

    def _sighting(
        self, observations: dict[str, Observation], limit_s: float = LOOK_LIMIT_S
    ) -> Sighting:
        """`limit_s`: for the controller's answer, and for the front end's."""
        controller = None
        http_ok = False
        if observations:
            controller, _ = ask_controller(
                self.plan, self._state_directory, self._runner_for, timeout_s=limit_s
            )
        if controller is not None and controller.front_end == "attached":
            http_ok = is_healthy(self.plan.front_end.url, timeout_s=limit_s)
        tunnels = passage.faults(self.plan, observations)
        return Sighting(observations, self._news(controller), http_ok, tunnels)

    def _news(self, controller: ControllerStatus | None) -> ControllerStatus | None:
        """What the controller says, without what it says of processes that are no more."""
        if controller is None or not self._unheard:
            return controller
        instances = [
            msgspec.structs.replace(i, state="launching", reason="")
            if i.name in self._unheard and i.state in ("suspect", "dead")
            else i
            for i in controller.instances
        ]
        return msgspec.structs.replace(controller, instances=instances)

    def _refuse_lost(self, entries: list[Progress]) -> None:
        """Raises LaunchFailed when a node has been silent for long, and its process to the controller
        too. An engine that the controller hears needs no SSH to become ready."""
        now = self._clock()
        silent = {entry.name: entry.detail for entry in entries if entry.stage == "unreachable"}
        self._lost_at = {name: self._lost_at.get(name, now) for name in silent}
        if any(now - since >= UNREACHABLE_LIMIT_S for since in self._lost_at.values()):
            lines = (f"{name}: unreachable: {reason}" for name, reason in silent.items())
            raise LaunchFailed(
                "\n".join((*lines, "next: mend the network or the node, then up again"))
            )

    def _obituary(self, lost: Casualty) -> str:
        words = self._last_words(lost.name)
        if self._lives_again(lost):
            words = self._last_words(lost.name, before=True)
        return f"{lost.name} died while starting: {lost.how}\n{words}"

    def _lives_again(self, lost: Casualty) -> bool:
        """Whether its guard has started it again since it was seen to die."""
        process = next((p for p in self.plan.processes() if p.name == lost.name), None)
        if process is None:
            return False
        try:
            return self._runner_for(process.node).observe(process).generation > lost.generation
        except Failure:
            return False

    def _overdue(self, entries: list[Progress]) -> str:
        late = [entry for entry in entries if not entry.done]
        lines = [
            f"not ready after {self.plan.timeouts.launch_s:.0f} s (timeouts.launch_s):",
            *(f"  {e.name}: {e.stage}{f', {e.detail}' if e.detail else ''}" for e in late),
        ]
        known = {process.name for process in self.plan.processes()}
        lines += [self._last_words(entry.name) for entry in late[:1] if entry.name in known]
        return "\n".join(lines)

    def _last_words(self, name: str, *, before: bool = False) -> str:
        process = next((p for p in self.plan.processes() if p.name == name), None)
        if process is None:
            return "it was started by hand: its log is where that was"
        log = f"{process.directory}/{record.OLD_LOG_FILE if before else record.LOG_FILE}"
        try:
            tail = self._runner_for(process.node).tail(process, LAST_LINES, before=before)
        except Failure as exc:
            return f"its log, {log} on {process.node}, cannot be read: {exc}"
        if not tail and not before:  # it may have been started again since it was seen to die
            return self._last_words(name, before=True)
        said = [f"  | {line}" for line in tail] or ["  (nothing)"]
        return "\n".join((f"the last lines of {log}:", *said, "next: mend that, then up again"))

    def undo(self) -> None:
        """End what this up launched; forget the cluster if nothing else of it lives."""
        self._interrupt.undoing()
        names = ", ".join(process.name for process in self._launched)
        if names:
            self._report.say(f"ending what was started: {names}")
        ended = end_processes(self._launched, self._runner_for, self.plan.timeouts.stop_s)
        faults = ended.faults
        if not faults and not self.adopted:
            faults = far_controller.forget((self.plan.controller,), self._runner_for)
        for process in self._launched:
            self._record.processes.pop(process.name, None)
        try:
            if not faults and not self.adopted:
                record.remove(self._state_directory)
                return
            self.write(self._phase)
        except Failure as exc:  # the record as it was names more than there is: `down` stands that
            faults = (*faults, str(exc))
        for fault in faults:
            self._report.say(fault)
        if self.adopted:
            kept = ", ".join(f"{name} (pid {seen.pid})" for name, seen in self.adopted.items())
            self._report.say(f"left running, as this up did not start them: {kept}")
        down = f"`vdisagg down --name {self.plan.name}`"
        again = f"`vdisagg up {self.plan.topology_file}` again, or " if self._mends else ""
        self._report.say(f"next: {again}{down}")
