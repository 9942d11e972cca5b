# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A process that is asked for an answer may do what it likes: this one goes on, and soon."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import numpy as np
from onnx import helper
import pytest
from support.answering import (
    abort,
    access_nothing,
    be_killed,
    fail,
    grow,
    grow_slowly,
    leave,
    say_much,
    spin,
)
from support.answering import sleep as sleep_long
from support.bundles import npz
from support.graphs import golden_of_policy, policy_with

from metactl_ros.errors import BundleError
from metactl_ros.policy import network
from metactl_ros.policy.network import (
    ANSWER_S,
    NoAnswerError,
    NotStartedError,
    PolicyFiles,
    PolicyShape,
    run_confined,
    SLACK_S,
    verify_confined,
)

SOON_S = ANSWER_S + SLACK_S + 10.0
"""With the start of a process, on a machine that stalls. Three times this is less than what a
process sleeps that nobody ends (60 s): else a test of its end would pass without one."""


def answer_to(act):
    return run_confined('support.answering', act.__name__.encode())


def test_an_answer_comes_back():
    assert run_confined('support.answering', b'abc' * 1_000_000) == b'cba' * 1_000_000


def test_only_the_answer_is_the_answer():
    assert answer_to(say_much) == b'the answer'


@pytest.mark.parametrize(
    ('act', 'reason'),
    [
        (spin, 'took longer than 3 s'),
        (sleep_long, 'took longer than 3 s'),
        (grow, 'needed more than 256 MiB'),
        (grow_slowly, 'needed more than 256 MiB'),
        (abort, r'was ended by SIGABRT \(terminate called\[2J\)'),
        (access_nothing, 'was ended by SIGSEGV'),
        (be_killed, 'was ended by SIGKILL'),
        (fail, 'ended with 1 .*RuntimeError: of its own'),
        (leave, 'ended with 3'),
    ],
)
def test_whatever_becomes_of_the_process_is_told_soon(act, reason, capfd):
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match=reason):
        answer_to(act)
    assert time.monotonic() - began < SOON_S
    assert capfd.readouterr() == ('', '')


def test_a_process_that_cannot_end_itself_is_ended(monkeypatch):
    """As one that was stopped."""
    before = children()
    monkeypatch.setattr(network, 'ANSWER_S', -SLACK_S + 0.2)
    with pytest.raises(NoAnswerError, match='took longer'):
        answer_to(sleep_long)
    assert children() <= before


def children():
    """Return the processes that this one has not ended, those of earlier tests included."""
    listed = Path(f'/proc/self/task/{os.getpid()}/children')
    return set(listed.read_text().split()) if listed.exists() else set()


def test_a_process_that_does_not_start_says_nothing_about_the_policy(monkeypatch):
    before = children()
    with pytest.raises(NoAnswerError, match=r'ended with 1 .*No module named no_such_module'):
        run_confined('no_such_module', b'')
    monkeypatch.setattr(network, 'START_S', 0.0)
    with pytest.raises(NotStartedError, match='did not start within 0 s'):
        run_confined('support.answering', b'')
    monkeypatch.setattr(sys, 'executable', '/nowhere/python')
    with pytest.raises(NotStartedError, match='cannot be started'):
        run_confined('support.answering', b'')
    assert children() <= before


def test_it_ends_itself_when_nobody_waits_for_it_any_more():
    """Started by a process that is killed before there is an answer, signals blocked."""
    code = (
        'import os, signal, time, metactl_ros.policy.network as network\n'
        'signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGXCPU})\n'
        'signal.signal(signal.SIGALRM, signal.SIG_IGN)\n'
        'def exchange(process, request):\n'
        '    os.read(process.stdout.fileno(), 1)\n'
        '    process.stdin.write(request)\n'
        '    process.stdin.close()\n'
        '    print(process.pid, flush=True)\n'
        '    time.sleep(60.0)\n'
        'network._exchange = exchange\n'
        "network.run_confined('support.answering', b'sleep')\n"
    )
    path = os.pathsep.join([str(folder) for folder in Path(__file__).parents[1:3]])
    with subprocess.Popen(
        [sys.executable, '-c', code],
        stdout=subprocess.PIPE,
        env=os.environ | {'PYTHONPATH': path},
        text=True,
    ) as parent:
        child = int(parent.stdout.readline())
        descriptor = os.pidfd_open(child)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 3.0 * SOON_S
    while not has_ended(descriptor) and time.monotonic() < deadline:
        time.sleep(0.05)  # somebody else's child: there is nothing to wait for
    assert has_ended(descriptor)
    os.close(descriptor)


def has_ended(descriptor):
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except ProcessLookupError:
        return True
    return False


# The verifier without its check of the graph: what reached onnxruntime in earlier versions


def expanded(to, scale=1.0):
    size = np.array([scale], dtype=np.float32)
    return helper.make_node('Expand', ['one', 'size'], ['big']), {'one': size, 'size': to}


def gigabytes():
    expand, constants = expanded([2**31])
    largest = helper.make_node('ReduceMax', ['big'], ['more'], keepdims=0)
    return policy_with(expand, largest, **constants)


def minutes():
    """Multiply constants for as long as there is power."""
    expand, constants = expanded([3000, 3000], 1e-3)
    products = [
        helper.make_node('MatMul', [f'x{k}' if k else 'big', 'big'], [f'x{k + 1}'])
        for k in range(500)
    ]
    largest = helper.make_node('ReduceMax', ['x500'], ['more'], keepdims=0)
    return policy_with(expand, *products, largest, **constants)


def less_than_nothing():
    expand, constants = expanded([-5])
    first = helper.make_node('Slice', ['big', 'from', 'to', 'from'], ['part'])
    largest = helper.make_node('ReduceMax', ['part'], ['more'], keepdims=0)
    return policy_with(expand, first, largest, **constants)


def as_large_as_the_arm_is_high():
    """Make a tensor whose size is a joint angle: 1e9 entries at 1 rad."""
    nodes = [
        helper.make_node('ReduceMax', ['window'], ['angle'], keepdims=0),
        helper.make_node('Mul', ['angle', 'huge'], ['length']),
        helper.make_node('Cast', ['length'], ['entries'], to=7),
        helper.make_node('Range', ['zero', 'entries', 'one'], ['big']),
        helper.make_node('ReduceMax', ['big'], ['last'], keepdims=0),
        helper.make_node('Cast', ['last'], ['more'], to=1),
    ]
    return policy_with(*nodes, huge=np.float32(1e9), zero=np.int64(0), one=np.int64(1))


def files_of(model):
    window, action = golden_of_policy(np.random.default_rng(0))
    golden = npz(window=window, action=action)
    return PolicyFiles(Path('a.metactl'), model, golden, PolicyShape(5, 11, 8))


@pytest.mark.parametrize(
    ('make', 'reason'),
    [
        (gigabytes, 'needs more than 256 MiB'),
        (minutes, 'the process that verifies it took longer than 3 s'),
        (less_than_nothing, 'the process that verifies it was ended by SIGABRT'),
        (as_large_as_the_arm_is_high, 'needs more than 256 MiB'),
    ],
)
def test_what_onnxruntime_cannot_bear_is_refused_even_if_the_check_let_it_pass(
    make, reason, monkeypatch, capfd
):
    with pytest.raises(BundleError, match=r"the operator '(Expand|ReduceMax)'"):
        verify_confined(files_of(make()))
    monkeypatch.setattr(network, '__name__', 'support.unchecked_verifier')
    began = time.monotonic()
    with pytest.raises(BundleError, match=reason) as caught:
        verify_confined(files_of(make()))
    assert time.monotonic() - began < SOON_S
    assert 'a.metactl' in str(caught.value)
    assert 'export the policy again' in str(caught.value)
    assert capfd.readouterr() == ('', '')


def test_a_sound_policy_is_found_sound():
    verify_confined(files_of(policy_with()))


def test_a_machine_that_is_too_busy_is_not_the_fault_of_the_bundle(monkeypatch):
    monkeypatch.setattr(network, 'START_S', 0.0)
    with pytest.raises(BundleError, match='load it again while this machine is less busy'):
        verify_confined(files_of(policy_with()))
