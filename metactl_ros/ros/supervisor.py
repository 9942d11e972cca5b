# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Watches over control, twenty times a second: who else publishes, and what is to be logged.

It has a thread of its own, as light as can be and without priority: logging, and asking the
middleware who publishes, take time that the control thread does not have. What it finds wrong
becomes an error of the next tick.
"""

from collections.abc import Callable, Sequence
import threading
import time
import traceback
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from metactl_ros.control.modes import Cause
from metactl_ros.errors import MetactlError
from metactl_ros.ros.diagnostics import LEVELS
from metactl_ros.runtime.control_thread import Exchange
from metactl_ros.runtime.operator_desk import Change, ENDS, ModeLog
from metactl_ros.runtime.state_intake import NAME_UNKNOWN, names_of, Publisher, SourceWatch

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


class Supervisor(threading.Thread):
    """Watches the sources of a node, and writes its mode changes into the log."""

    def __init__(self, node: Any, states_topic: str, command_topics: Sequence[str]) -> None:
        super().__init__(name='supervisor', daemon=True)
        self._node, self._logger = node, node.get_logger()
        self._states_topic = node.resolve_topic_name(states_topic)
        self._command_topics = [node.resolve_topic_name(topic) for topic in command_topics]
        self._began_s = time.monotonic()
        self._must_stop = threading.Event()
        self._looking = threading.Lock()
        self._exchange: Exchange | None = None
        self._commands = False
        self._logged: tuple[str, ...] = ()
        self.watch = SourceWatch(self._states_topic)
        self.modes = ModeLog()
        self.error: str | None = None
        """Why the thread ended, if it was not asked to."""

    def stop(self) -> None:
        """Ask for the end and wait for it."""
        self._must_stop.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Look until stopped."""
        try:
            while not self._must_stop.wait(POLL_LIST_S):
                self.look()
        except Exception:
            self.error = traceback.format_exc()
            if self._exchange is not None:
                self._exchange.outer_error = Cause.INTERNAL_ERROR

    def require_alone(
        self, take: Callable[[], Any], *, has_publishers: bool, commands: bool
    ) -> None:
        """Refuse to drive beside another.

        Args:
            take: Returns a joint state that waits and what is known of it, or None.
            has_publishers: Whether this node publishes on the topics of commands already.
            commands: Whether it is going to.

        Raises:
            SourceError: With the names of the nodes.
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
        self.look()
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

    def look(self) -> None:
        """Look who publishes, and log what is new."""
        with self._looking:
            now_ns = time.monotonic_ns()
            topics = self._command_topics if self._commands else ()
            foreign = {topic: self._listed(topic, own=True) for topic in topics}
            self.watch.look(self._listed(self._states_topic), foreign, now_ns)
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
        least_s, most_s = (self._began_s + duration_s for duration_s in DISCOVERY_S)
        end_s = max(time.monotonic() + LISTEN_S, least_s)
        while (now_s := time.monotonic()) < end_s:
            if now_s < most_s and not self._listed(self._states_topic):
                end_s = max(min(now_s + LISTEN_S, most_s), least_s)
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
            self._log_change(change)

    def _log_change(self, change: Change) -> None:
        level = DiagnosticStatus.OK if change.text is ENDS else LEVELS[change.mode]
        if level == DiagnosticStatus.ERROR:  # rclpy wants one severity per place in the code
            self._logger.error(str(change))
        elif level == DiagnosticStatus.WARN:
            self._logger.warning(str(change))
        else:
            self._logger.info(str(change))
