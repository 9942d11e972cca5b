# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The other side of a node under test: it runs as a process, and the test speaks ROS with it."""

from contextlib import contextmanager
import os
from pathlib import Path
import subprocess
import sys
import threading
import time
import warnings

import psutil
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor

from metactl_ros.processes import loopback_environment

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0


class Peer:
    """A node whose callbacks run in a thread of their own."""

    def __init__(self, domain_id):
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # of lark, which rosidl imports
            for name, value in loopback_environment(domain_id).items():
                patch.setenv(name, value)
            self.context = rclpy.context.Context()
            rclpy.init(context=self.context, domain_id=domain_id)
            self.node = rclpy.create_node('peer', context=self.context)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._must_end = False
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self):
        while not self._must_end:
            self._executor.spin_once(timeout_sec=0.02)

    def call(self, kind, name, request):
        client = self.node.create_client(kind, name)
        wait_until(client.service_is_ready)
        answer = client.call_async(request)
        wait_until(answer.done)
        return answer.result()

    def close(self):
        self._must_end = True
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


def wait_until(condition, timeout_s=PATIENCE_S, says=lambda: ''):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f'waited {timeout_s} s in vain {says()}'
        time.sleep(0.002)


@contextmanager
def running(module, domain_id, *parameters, drives=True, code=None, ros=()):
    """Run a node, or code that does, and give its process; it ends with the block.

    A controller that drives begins by itself, with a motion of its own, by default.
    """
    if module == 'controller_node' and drives:
        parameters = ('autostart:=true', 'reference:=sinusoid', *parameters)
    arguments = [*(part for text in parameters for part in ('-p', text)), *ros]
    start = ['-m', f'metactl_ros.ros.{module}'] if code is None else ['-c', code]
    with subprocess.Popen(
        [sys.executable, *start, '--ros-args', *arguments],
        cwd=ROOT,
        env=os.environ | loopback_environment(domain_id),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # a node that was killed haunts the graph for 20 s
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()


def priorities(process):
    """Return the real-time priority of each thread, largest first; zero is none."""
    threads = psutil.Process(process.pid).threads()
    return sorted((os.sched_getparam(one.id).sched_priority for one in threads), reverse=True)
