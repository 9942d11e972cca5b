# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a trajectory to an arm that follows it, if it can."""

from metactl_ros.control.modes import Mode
from metactl_ros.runtime.controller import Tick
from metactl_ros.runtime.joint_messages import MessageError
from metactl_ros.runtime.reference_source import TrajectorySource
from metactl_ros.runtime.trajectory_message import unpack


def take_in(source: TrajectorySource, data: bytes, last: Tick | None, ros_now_ns: int) -> None:
    """Let a source follow a trajectory from shortly after the last tick on.

    Args:
        source: Of the controller that made the tick.
        data: The bytes of a trajectory_msgs/JointTrajectory.
        last: The last tick; None before the first.
        ros_now_ns: Now, on the clock of the trajectory's stamp.

    Raises:
        MessageError: If it cannot be followed, or the arm follows nothing now.
    """
    trajectory = unpack(data)
    if last is not None and last.mode >= Mode.STOP:
        raise MessageError(
            f'trajectory: expected an arm that follows, found it in {last.mode.name} '
            f'({last.cause.name}); send it again once that is over.'
        )
    source.accept(trajectory, 0 if last is None else last.now_ns, ros_now_ns)
