# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An arm at rest behind ROS topics, for tests of the controller node."""

import threading
import time

from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.srv import ChangeState
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from metactl_ros.control.modes import Mode
from metactl_ros.runtime.joint_states import set_stamp
from support.ros_peer import Peer, wait_until

JOINTS = ('joint1', 'joint2')
PERIOD_S = 0.01
STILL = 'sinusoid.amplitude_rad:=[0.0, 0.0]'
PATIENT = 'state_timeout_s:=0.5'  # the robot of a test has no priority on a busy machine


class Robot(Peer):
    """An arm at rest: it publishes one posture at 100 Hz and keeps the commands it gets.

    A command is kept with its number: of a topic that holds only the newest, some may be missed.
    """

    def __init__(self, domain_id):
        super().__init__(domain_id)
        self.commands, self.shield, self.outputs, self.reports = [], [], [], []
        self.speaks = False
        self.last_state_s = 0.0
        self.alter = lambda message: message
        self.since_ns = 0
        self.listen(JointState, 'joint_commands', self.on_command)
        self.listen(Float64MultiArray, 'forward_effort_controller/commands', self.outputs.append)
        self.listen(JointState, 'controller/shield', self.on_shield)
        self.listen(DiagnosticArray, '/diagnostics', self.reports.append)
        self.states = self.node.create_publisher(JointState, 'joint_states', 5)
        self._speaker = threading.Thread(target=self._speak, daemon=True)
        self._speaker.start()

    def listen(self, kind, topic, callback):
        def unless_old(message, info):  # the last words of a node of the test before
            if info['source_timestamp'] > self.since_ns:
                self.sequence_number = info['publication_sequence_number']
                callback(message)

        self.node.create_subscription(kind, topic, unless_old, 100)

    def _speak(self):
        due = time.monotonic()
        while not self._must_end:
            due += PERIOD_S
            time.sleep(max(due - time.monotonic(), 0.0))
            if self.speaks:
                message = JointState(name=list(JOINTS), position=[0.0, 0.0], velocity=[0.0, 0.0])
                set_stamp(message.header.stamp, time.time_ns())
                self.states.publish(self.alter(message))
                self.last_state_s = time.monotonic()

    def on_command(self, message):
        self.commands.append((self.sequence_number, list(message.name), list(message.effort)))

    def on_shield(self, message):
        self.shield.append(dict(zip(message.name, message.position, strict=True)))

    @property
    def mode(self):
        return Mode(int(self.shield[-1]['mode'])) if self.shield else None

    def until(self, mode):
        wait_until(lambda: self.mode == mode, says=lambda: f'{self.mode!r}, not {mode!r}')

    def change_state(self, label):
        """Ask the controller for a transition; return whether it was made."""
        request = ChangeState.Request()
        request.transition.label = label
        return self.call(ChangeState, 'controller/change_state', request).success

    def forget(self):
        self.speaks, self.alter = False, lambda message: message
        self.since_ns = time.time_ns()
        for kept in (self.commands, self.shield, self.outputs, self.reports):
            kept.clear()

    def close(self):
        self._must_end = True
        self._speaker.join()
        super().close()
