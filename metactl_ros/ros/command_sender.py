# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Sends commands, whatever the clock says, and asks the robot to brake when it should.

A command bears the time of its state in simulated time, else that of the wall clock. What a stamp
cannot hold, as after January 2038, becomes the last that it can; a clock that fails gives none.
Neither keeps a command from going out, least of all the last zero.

`stop_request` is true in FAULT, in BLIND once the torque has faded, and after an error or a hang.
Zero torque lets an arm fall, and the watchdog that every robot needs sees none of these: commands
go on. A robot that can brake should.
"""

from collections.abc import Callable, Sequence
from typing import Any

from std_msgs.msg import Bool

from metactl_ros.ros.telemetry import forward_command, joint_state
from metactl_ros.runtime.control_thread import Command
from metactl_ros.runtime.joint_samples import LAST_STAMP_NS


class CommandSender:
    """Publishes commands and the stop request; without publishers, as in shadow, nothing."""

    stamped: Any | None = None
    """Of joint_commands."""
    forward: Any | None = None
    """Of the commands of ros2_control."""
    stop_request: Any | None = None
    """Latched: whoever comes later hears the last request."""

    def __init__(
        self,
        joint_names: Sequence[str],
        now_ns: Callable[[], int] | None,
        complain: Callable[[str], None],
    ) -> None:
        """Make one that sends for these joints.

        Args:
            joint_names: Of the arm, in its order.
            now_ns: The wall clock; None in simulated time.
            complain: Is told once of each thing that is wrong with the clock.
        """
        self._joints, self._now_ns, self._complain = joint_names, now_ns, complain
        self._complaints: set[str] = set()
        self._is_braking: bool | None = None
        self.stamp_ns = 0
        """Of the last command."""

    def send(self, command: Command) -> None:
        """Publish a command, and with it whether the robot should brake, if that changed."""
        self.stamp_ns = self._stamp_of(command)
        try:
            if self.stamped is not None:
                message = joint_state(self.stamp_ns, self._joints, effort=command.effort_nm)
                self.stamped.publish(message)
            if self.forward is not None:
                self.forward.publish(forward_command(self._joints, command.effort_nm))
        finally:
            if self.stop_request is not None and command.must_brake is not self._is_braking:
                self.stop_request.publish(Bool(data=command.must_brake))
                self._is_braking = command.must_brake

    def _stamp_of(self, command: Command) -> int:
        if self._now_ns is None:
            return command.state_stamp_ns
        try:
            stamp_ns = self._now_ns()
        except Exception as error:  # whatever a clock raises
            self._complain_once(f'clock: {error!r}; commands bear no stamp.')
            return 0
        if stamp_ns > LAST_STAMP_NS:
            self._complain_once(
                'clock: is beyond January 2038, which no stamp can hold; all commands bear the '
                'last one that it can. Set the clock of this machine.'
            )
        return stamp_ns

    def _complain_once(self, text: str) -> None:
        if text not in self._complaints:
            self._complaints.add(text)
            self._complain(text)
