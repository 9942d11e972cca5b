# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of scenarios made up for tests: nothing happened, or one thing that a test asks for."""

from dataclasses import replace

import numpy as np

from metactl_ros.check.invariants import Commands, States
from metactl_ros.hil.run_log import RunLog, Span, UsedStates
from metactl_ros.hil.scenario import ScriptedFault

ZERO_NS = 1_800_000_000_000_000_000
TIMES_S = np.arange(0.0, 5.0, 0.01)
TIMES_NS = ZERO_NS + np.round(1e9 * TIMES_S).astype(np.int64)
SILENCE = ScriptedFault(kind='silence', at_s=2.0, for_s=0.3)


def good_run():
    """Return five seconds in which nothing happened, under a fault that came 20 ms late."""
    effort = np.tile([10.0, 5.0], (len(TIMES_S), 1))
    return RunLog(
        zero_ns=ZERO_NS,
        end_s=5.0,
        tick_s=TIMES_S,
        mode=np.zeros(len(TIMES_S), dtype=np.int64),
        cause=np.zeros(len(TIMES_S), dtype=np.int64),
        error_rad=np.full(len(TIMES_S), 0.01),
        excess=np.full(len(TIMES_S), -0.1),
        used_states=(UsedStates(TIMES_S, TIMES_NS - ZERO_NS),),
        commands=Commands(TIMES_NS, TIMES_NS, effort),
        states=States(TIMES_NS, np.zeros_like(effort), effort),
        restarts_ns=(),
        command_problems=(),
        foreign_s=np.zeros(0),
        braking_s=np.array([-1.0, 0.0]),
        is_braking=np.array([True, False]),
        step_s=TIMES_S,
        true_q_rad=np.zeros_like(effort),
        true_qd_radps=np.tile([0.5, -0.5], (len(TIMES_S), 1)),
        spans=(Span(SILENCE, 2.02, 2.32),),
        lost_processes=(),
        num_resets=0,
    )


def changed(array, begin_s, end_s, value):
    """Return a copy of an array that has another value for a while."""
    copy = np.array(array)
    copy[(begin_s <= TIMES_S) & (end_s > TIMES_S)] = value
    return copy


def in_mode(mode, begin_s, end_s):
    log = good_run()
    return replace(log, mode=changed(log.mode, begin_s, end_s, mode))


def with_effort(begin_s, end_s, value):
    log = good_run()
    effort = changed(log.commands.effort_nm, begin_s, end_s, value)
    return replace(log, commands=log.commands._replace(effort_nm=effort))


def with_error(begin_s, end_s, value):
    log = good_run()
    return replace(log, error_rad=changed(log.error_rad, begin_s, end_s, value))
