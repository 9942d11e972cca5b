# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Starts and ends the front of the controller: the process that answers the network.

rclpy makes Python objects of a request while no other Python thread of the process can run. One of
a million names takes a second, whatever the priority of the control thread. So the node with
services, parameters and trajectories lives in a process that controls nothing.

It is forked before ROS is initialised and before any thread of Python: all that was imported is
there already, so that the controller starts as fast as if it were one process.
"""

from collections.abc import Sequence
import multiprocessing
import socket
import sys

from metactl_ros.errors import MetactlError
from metactl_ros.ros.front_node import run_front
from metactl_ros.runtime.process_link import Fields, Link

END_WITHIN_S = 1.0
"""How long it may take to end."""


class FrontError(MetactlError, RuntimeError):
    """The front did not come up."""


class FrontProcess:
    """The front, and the link to it."""

    def __init__(self, arguments: Sequence[str] | None) -> None:
        """Start it with the arguments of a node; None: those of this process."""
        here, there = socket.socketpair()

        def run() -> None:
            here.close()  # or it would keep the link of its parent open
            sys.exit(run_front(Link(there), arguments))

        self._process = multiprocessing.get_context('fork').Process(target=run, name='front')
        self._process.start()
        there.close()
        self.link = Link(here)

    def hello(self) -> Fields:
        """Wait for its first words: name and namespace, and what its topics are called.

        Raises:
            FrontError: If it ended instead; it has told why.
        """
        packet = self.link.receive()
        if packet is None:
            raise FrontError(f'controller: its front ended with code {self.wait()}.')
        return packet.fields

    def wait(self) -> int | None:
        """Return the exit code of a front whose link is closed."""
        self._process.join(END_WITHIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        return self._process.exitcode

    def end(self) -> None:
        """Close the link, and wait until the front has ended."""
        self.link.close()
        self.wait()
