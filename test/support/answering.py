# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Run as a confined process by `test_network.py`: does what the request says, however bad."""

import ctypes
import os
import signal
import sys
import time

from metactl_ros.policy.network import serve


def spin():
    while True:
        pass


def sleep():
    time.sleep(60.0)


def grow():
    return bytes(2**29)


def grow_slowly():
    kept = []
    while True:
        kept.append(bytearray(2**20))


def abort():
    sys.stderr.write('terminate called\x1b[2J\n')
    sys.stderr.flush()
    os.abort()


def access_nothing():
    ctypes.string_at(0)


def fail():
    raise RuntimeError('of its own')


def leave():
    os._exit(3)


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def say_much():
    sys.stdout.write('not an answer')
    return b'the answer'


def respond(request):
    return {f.__name__: f for f in BAD}.get(request.decode(), lambda: request[::-1])() or b''


BAD = (spin, sleep, grow, grow_slowly, abort, access_nothing, fail, leave, be_killed, say_much)

if __name__ == '__main__':
    serve(respond)
