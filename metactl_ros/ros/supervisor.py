# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Watches over control: who else publishes, what is logged, and what /diagnostics says of it.

A `Supervisor` has a thread of its own, as light as can be and without priority: logging, and
asking the middleware who publishes, take time that the control thread does not have. What it finds
wrong, twenty times a second, becomes an error of the next tick.
"""

from collections.abc import Callable, Mapping, Sequence
import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.errors import MetactlError
from metactl_ros.metrics import percentiles
from metactl_ros.ros.messages import status
from metactl_ros.ros.spin import Worker
from metactl_ros.runtime.control_thread import ControlThread, Exchange
from metactl_ros.runtime.controller import LiveController
from metactl_ros.runtime.deadlines import BINS_MS
from metactl_ros.runtime.operator_requests import ENDS, ModeLog, recent_lines, text_of
from metactl_ros.runtime.state_intake import (
    NAME_UNKNOWN,
    names_of,
    Publisher,
    SourceWatch,
    StateIntake,
)
from metactl_ros.signals import seconds

LATE_SHARE = 0.01
"""Share of late ticks that makes a warning."""
MIN_COVERAGE = 0.9
"""Share of time within the margin below which the certified error is said not to hold."""
LEVELS: dict[Mode, bytes] = {
    Mode.NOMINAL: DiagnosticStatus.OK,
    Mode.WARMUP: DiagnosticStatus.OK,
    Mode.FALLBACK: DiagnosticStatus.WARN,
    Mode.STOP: DiagnosticStatus.WARN,
    Mode.BLIND: DiagnosticStatus.ERROR,
    Mode.FAULT: DiagnosticStatus.ERROR,
}


def report(
    node_name: str,
    thread: ControlThread,
    controller: LiveController,
    intake: StateIntake,
    facts: Mapping[str, object],
    supervisor: 'Supervisor',
) -> list[Any]:
    """Return a DiagnosticStatus of each check: mode, timing, inputs, sources, latency."""
    deadlines, counts, latency = thread.deadlines, intake.counts, intake.latency.finding()
    is_late = deadlines.num_late > LATE_SHARE * max(deadlines.num_ticks, 1)
    refused = sum(count for key, count in counts.items() if key not in ('accepted', 'dropped'))
    sources = supervisor.watch
    publishers = {
        'publishers of joint states': names_of(sources.states),
        'states of others used': sources.streams.num_foreign_used,
    }
    ok, warn, error = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
    found = ' '.join(sources.findings)
    late = f'{deadlines.num_late} of {deadlines.num_ticks} ticks late'
    rows: tuple[tuple[str, bytes, str, Mapping[str, object]], ...] = (
        ('mode', *mode_check(thread, controller, facts, supervisor.modes)),
        ('timing', warn if is_late else ok, late, timing_values(thread, controller)),
        ('joint states', warn if refused else ok, f'{refused} refused', counts),
        ('sources', error if found else ok, found or 'one source', publishers),
        ('state latency', ok if latency.is_good else warn, latency.text, latency.values),
    )
    return [status(f'{node_name}: {row[0]}', *row[1:]) for row in rows]


def mode_check(
    thread: ControlThread, controller: LiveController, facts: Mapping[str, object], modes: ModeLog
) -> tuple[bytes, str, dict[str, object]]:
    """Return level, text and values: mode, cause, since when, remedy, and the last changes."""
    tick, values = controller.last, dict(facts)
    level, message = DiagnosticStatus.STALE, 'waiting for a joint state'
    if tick is not None:
        level, message, now_ns = LEVELS[tick.mode], tick.mode.name, time.monotonic_ns()
        is_enabled = controller.requests.is_enabled
        text = text_of(tick.cause, is_enabled=is_enabled, is_ending=modes.is_ending)
        last = modes.recent[-1] if modes.recent else None
        cause = f'{text.happened} ({tick.cause.name})'
        values |= {
            'mode': tick.mode.name,
            'cause': cause,
            'joint': last.joint if last else '',
            'since s': seconds(now_ns - (last.at_ns if last else now_ns)),
            'to do': text.to_do(tick.mode),
            'mode changes': modes.num_changes,
            **recent_lines(modes.recent, now_ns),
        }
        if level != DiagnosticStatus.OK:
            message = f'{tick.mode.name}: {cause}'
        elif found := estimate_finding(controller.loop):
            level, message = DiagnosticStatus.WARN, f'{tick.mode.name}: {found}'
        if tick.mode == Mode.FAULT:
            values['last error'] = facts.get('last error') or cause
        values |= {
            'shield reason': tick.step.decision.reason,
            'shield activation': controller.num_moved / max(controller.num_ticks, 1),
            'estimate within margin': float(controller.loop.coverage),
            'policy errors': controller.num_policy_errors,
            'failed output checks': thread.output.num_checks_failed,
        }
    if thread.error:
        level, message = DiagnosticStatus.ERROR, thread.error
    return level, message, values


def estimate_finding(loop: ControlLoop) -> str:
    """Return what is wrong with the estimate that the law counts on, if anything is."""
    if not loop.fits.all():
        return 'the model predicts the arm with none of the delays it knows: low gains act'
    if loop.coverage < MIN_COVERAGE:
        radius = 1e3 * loop.lyapunov.error_radius_rad
        return (
            f'the estimate was off by more than rho on {1.0 - loop.coverage:.0%} of the last 5 s '
            f'or so: the certified error of {radius:.0f} mrad does not hold'
        )
    return ''


def timing_values(thread: ControlThread, controller: LiveController) -> dict[str, object]:
    """Return how well deadlines are kept, and how long ticks take."""
    deadlines = thread.deadlines
    late = deadlines.lateness_ms()
    bins = [f'<= {end} ms' for end in BINS_MS] + [f'> {BINS_MS[-1]} ms']
    return {
        'ticks': deadlines.num_ticks,
        'mean period ms': deadlines.mean_period_ms(),
        'stale ticks': controller.num_stale,
        'late ticks': deadlines.num_late,
        'missed deadlines': deadlines.num_missed,
        'commands for ticks that hung': thread.output.num_stand_ins,
        'is realtime': thread.is_realtime,
        **{f'lateness {name} ms': value for name, value in late.items()},
        **{
            f'lateness {name}': count
            for name, count in zip(bins, deadlines.histogram, strict=True)
        },
        **quantiles_ms('tick', thread.tick_ns[: deadlines.num_ticks]),
        **quantiles_ms('inference', controller.inference_ns[: controller.num_ticks]),
    }


def quantiles_ms(name: str, durations_ns: Any) -> dict[str, object]:
    """Return p50, p99 and the largest of some durations, ms; nothing of none."""
    found = percentiles(durations_ns) or {}
    return {f'{name} {which} ms': value / 1e6 for which, value in found.items()}


POLL_LIST_S = 0.05
"""How often the list of publishers is read."""
DISCOVERY_S = 0.5, 1.5
"""How long after its start a node has found the others: at least, and at most if not even the
robot is found."""
LISTEN_S = 0.25
"""How long joint states are listened to before control begins."""
FORGOTTEN = 'one that was killed stays listed for up to 20 s'


class SourceError(MetactlError, RuntimeError):
    """Another node publishes joint states, or commands, of the arm."""


class Supervisor(Worker):
    """Watches the sources of a node, and writes its mode changes into the log."""

    def __init__(self, node: Any, states_topic: str, command_topics: Sequence[str]) -> None:
        super().__init__('supervisor')
        self._node, self._logger = node, node.get_logger()
        self._states_topic = node.resolve_topic_name(states_topic)
        self._command_topics = [node.resolve_topic_name(topic) for topic in command_topics]
        self._began_s = time.monotonic()
        self._looking = threading.Lock()
        self._exchange: Exchange | None = None
        self._commands = False
        self._logged: tuple[str, ...] = ()
        self.watch = SourceWatch(self._states_topic)
        self.modes = ModeLog()

    def _work(self) -> None:
        try:
            while not self._must_stop.wait(POLL_LIST_S):
                self.poll()
        except Exception:
            if self._exchange is not None:
                self._exchange.outer_error = Cause.INTERNAL_ERROR
            raise

    def require_sole_publisher(
        self, take: Callable[[], Any], *, has_publishers: bool, commands: bool
    ) -> None:
        """Refuse to drive beside another, with a `SourceError` that names the nodes.

        Args:
            take: Returns a joint state that waits and what is known of it, or None.
            has_publishers: Whether this node publishes on the topics of commands already.
            commands: Whether it is going to.
        """
        with self._looking:
            self.watch.forget_messages()
        self._listen(take)
        for topic in self._command_topics if commands else ():
            others = self._listed(topic, own=has_publishers)
            if others:
                raise SourceError(
                    f'{topic}: expected no other publisher, found {names_of(others)}; end it '
                    f'({FORGOTTEN}), then activate again.'
                )
        self.poll()
        if self.watch.findings:
            raise SourceError(f'{self.watch.findings[0]} ({FORGOTTEN}.)')

    def begin(self, exchange: Exchange, joint_names: Sequence[str], *, commands: bool) -> None:
        """Watch over a thread that is going to drive, by commands or only in shadow."""
        with self._looking:
            self.watch.forget_messages()
            self.modes = ModeLog(joint_names)
            self._commands, self._exchange, self._logged = commands, exchange, ()

    def end(self) -> None:
        """Log what is left, and watch over no thread any more."""
        with self._looking:
            self._log_changes()
            self._exchange, self._commands = None, False

    def poll(self) -> None:
        """Look who publishes, and log what is new."""
        with self._looking:
            now_ns = time.monotonic_ns()
            topics = self._command_topics if self._commands else ()
            foreign = {topic: self._listed(topic, own=True) for topic in topics}
            self.watch.poll(self._listed(self._states_topic), foreign, now_ns)
            if self._exchange is None:
                return
            is_bad = bool(self.watch.findings)
            self._exchange.outer_error = Cause.SECOND_SOURCE if is_bad else Cause.NONE
            self._log_findings()
            self._log_changes()

    def _listed(self, topic: str, *, own: bool = False) -> list[Publisher]:
        """Return who is listed for a topic, without the one of this node if it is its own."""
        listed = [
            Publisher(f'{one.node_namespace.rstrip("/")}/{one.node_name}', bytes(one.endpoint_gid))
            for one in self._node.get_publishers_info_by_topic(topic)
        ]
        if own:  # by name, of which another node may have the same: one only
            mine = self._node.get_fully_qualified_name()
            place = next((k for k, one in enumerate(listed) if one.node == mine), None)
            if place is not None:
                del listed[place]
        return listed

    def _listen(self, take: Callable[[], Any]) -> None:
        """Receive joint states, for a while after a publisher of them is found."""
        min_s, max_s = (self._began_s + duration_s for duration_s in DISCOVERY_S)
        end_s = max(time.monotonic() + LISTEN_S, min_s)
        while (now_s := time.monotonic()) < end_s:
            if now_s < max_s and not self._listed(self._states_topic):
                end_s = max(min(now_s + LISTEN_S, max_s), min_s)
            taken = take()
            if taken is None:
                time.sleep(0.001)
            else:
                number = taken[1]['publication_sequence_number']
                self.watch.streams.receive(number, time.monotonic_ns())

    def _log_findings(self) -> None:
        findings = self.watch.findings
        if any(NAME_UNKNOWN in text for text in findings):
            return  # soon it is known
        for text in findings:
            if text not in self._logged:
                used = self.watch.streams.num_foreign_used
                self._logger.error(f'{text} States of others that were used: {used}.')
        self._logged = findings

    def _log_changes(self) -> None:
        changes, num_lost = self.modes.take()
        if num_lost:
            self._logger.error(f'{num_lost} changes of the mode came too fast to be logged.')
        for change in changes:
            level = DiagnosticStatus.OK if change.text is ENDS else LEVELS[change.mode]
            if level == DiagnosticStatus.ERROR:  # rclpy wants one severity per place in the code
                self._logger.error(str(change))
            elif level == DiagnosticStatus.WARN:
                self._logger.warning(str(change))
            else:
                self._logger.info(str(change))
