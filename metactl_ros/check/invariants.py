# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
r"""What no command may ever be, whatever happened to the controller; checked on a recording.

The controller is a black box here: what counts is what a listener received. By the name under
which a violation is listed, a command u_k is

    finite        a number for each joint
    effort size   within the limit of each joint
    effort rate   from u_(k-1) at most rate * max(T, time since), T the period; the first one of a
                  controller that was started anew is at most rate * T from the effort the robot
                  measured, or from gravity's torque
    blind         safe while no state comes

Safe while no state comes: blindness begins, at t_b, with the first command that was received more
than timeout + slack after the last state. From there on each joint stays between zero and what an
arm does that lets its gravity torque fade:

    least <= u_k <= most
    most  = max(0, share g, max(0, g, u_b) - rate d)        least likewise, with min and + rate d
    share = clip(1 - (t_k - t_b - slack) / ramp, 0, 1)

g is the gravity torque of the arm without payload at the last state, u_b the last command before,
and d how long the rate limit has had to act: the sum of min(T, time since) over the commands from
t_b on, less the slack. The controller's fading torque obeys it always, because it knows no later
than t_b that it is blind, and moves from u_b to share g as fast as the rate allows. Once ramp and
rate are through, only zero is left. A controller that holds its torque, or goes on tracking a
state that is not there any more, leaves it within the slack and the ramp.

The slack is for the listener: on a busy machine messages reach it later than they reach others.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metactl_ros.check.certificates import SLACK_NM, Violation
from metactl_ros.check.matrix_law import chain_of
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from metactl_ros.dynamics.rigid_body import ArmModel


class Commands(NamedTuple):
    """What a listener received, in the order in which it came."""

    stamp_ns: NDArray[np.int64]
    """As the controller stamped it, shape (N,)."""
    received_ns: NDArray[np.int64]
    """On the listener's clock, never stepping back, shape (N,)."""
    effort_nm: Array
    """Shape (N, n)."""


class States(NamedTuple):
    """The joint states a controller could use, in the order in which a listener received them."""

    received_ns: NDArray[np.int64]
    """On the clock of the commands, shape (S,)."""
    q_rad: Array
    """Shape (S, n); a row that is not finite is no state."""
    effort_nm: Array
    """As measured, shape (S, n); NaN where the robot measures none."""


class Guarantee(NamedTuple):
    """What the controller guarantees of its commands, and what the listener allows for."""

    arm: 'ArmModel'
    period_s: float
    state_timeout_s: float
    """After this long without a state the arm is blind, s."""
    blind_ramp_s: float
    """How long its gravity torque takes to fade, s."""
    slack_s: float
    """How much later than others the listener may receive a message, s."""


def check_commands(
    commands: Commands, states: States, guarantee: Guarantee, restarts_ns: Sequence[int] = ()
) -> list[Violation]:
    """Return every command of a controller that was not allowed, in order; `tick` is its number.

    The states are all that reached it, without those that it had to refuse. At `restarts_ns`, on
    the clock of the commands, a new controller was started.
    """
    if len(commands.received_ns) == 0:
        return []
    is_state = np.isfinite(states.q_rad).all(axis=1)
    states = States._make(column[is_state] for column in states)
    is_number = np.isfinite(commands.effort_nm)
    known = np.flatnonzero(is_number.all(axis=1))  # without numbers it is no start for the next
    sound = Commands._make(column[known] for column in commands)
    # Which are the first of a controller that was started anew.
    places = np.searchsorted(sound.received_ns, np.asarray(restarts_ns, dtype=np.int64))
    is_first = np.isin(np.arange(len(known)), places)
    largest = np.array(guarantee.arm.limits.effort_nm)
    everything = np.arange(len(is_number))
    found = [
        *_beyond('finite', everything, (~is_number).astype(np.float64), np.zeros_like(largest)),
        *_beyond('effort size', known, np.abs(sound.effort_nm), largest),
        *_beyond('effort rate', known, *_steps(sound, states, guarantee, is_first)),
        *_beyond('blind', known, *_strays(sound, states, guarantee, is_first)),
    ]
    times_s = (commands.received_ns - commands.received_ns[0]) / NANOSECONDS_PER_SECOND
    return sorted(v._replace(time_s=float(times_s[v.tick])) for v in found)


def blind_share(commands: Commands, states: States, guarantee: Guarantee) -> float:
    """Return the share of commands that were sent blind: a check of nothing proves nothing."""
    is_blind = _is_blind(commands.received_ns, states, guarantee)
    return float(np.mean(is_blind)) if len(is_blind) else 0.0


def _beyond(
    what: str, numbers: NDArray[np.int64], found: Array, allowed: Array
) -> Iterator[Violation]:
    """Yield the commands of which a joint is beyond what it may be, the worst joint of each."""
    excess = found - allowed - SLACK_NM
    for row in np.flatnonzero(~(excess <= 0.0).all(axis=1)):
        joint = int(np.argmax(excess[row]))
        most = float(np.broadcast_to(allowed, found.shape)[row, joint])
        yield Violation(int(numbers[row]), 0.0, what, float(found[row, joint]), most)


def _since_s(received_ns: NDArray[np.int64]) -> Array:
    """Return the time since the command before, zero for the first, s."""
    since_ns = np.diff(received_ns, prepend=received_ns[:1])
    return np.asarray(since_ns / NANOSECONDS_PER_SECOND)


def _steps(
    commands: Commands, states: States, guarantee: Guarantee, is_first: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Return how far each command is from the one before, and how far it may be, (N, n)."""
    effort, received = commands.effort_nm, commands.received_ns
    rate = np.array(guarantee.arm.limits.effort_rate_nmps)
    taken = np.abs(np.diff(effort, axis=0, prepend=effort[:1]))
    # Commands may be missing from the recording, so the time counts, in whole periods.
    periods = np.maximum(np.rint(_since_s(received) / guarantee.period_s), 1.0)
    allowed = periods[:, np.newaxis] * guarantee.period_s * rate
    slack_ns = round(guarantee.slack_s * NANOSECONDS_PER_SECOND)
    for number in np.flatnonzero(is_first).tolist():
        span_ns = received[max(number - 1, 0)] - slack_ns, received[number] + slack_ns
        rows = slice(*np.searchsorted(states.received_ns, span_ns))
        near = States._make(column[rows] for column in states)
        taken[number] = _from_a_start(effort[number], near, guarantee)
        allowed[number] = guarantee.period_s * rate
    return taken, allowed


def _from_a_start(effort_nm: Array, states: States, guarantee: Guarantee) -> Array:
    """Return how far a first effort is from the nearest one it may have begun from, (n,)."""
    if len(states.received_ns) == 0:
        return np.full_like(effort_nm, np.inf)
    largest = np.array(guarantee.arm.limits.effort_nm)
    gravity = chain_of(guarantee.arm).gravity_nm(states.q_rad)
    measured = np.where(np.isfinite(states.effort_nm), states.effort_nm, gravity)
    starts = np.clip(np.vstack([measured, gravity]), -largest, largest)
    away = np.abs(starts - effort_nm)
    return np.asarray(away[np.argmin(away.max(axis=1))])


def _is_blind(
    received_ns: NDArray[np.int64], states: States, guarantee: Guarantee
) -> NDArray[np.bool_]:
    """Return which commands came too long after the last state; shape (N,)."""
    if len(received_ns) == 0:
        return np.zeros(0, dtype=bool)
    # Before the first state of the recording, time counts from its first command.
    arrivals_ns = np.concatenate([received_ns[:1], states.received_ns])
    last = arrivals_ns[np.searchsorted(states.received_ns, received_ns, side='right')]
    limit_s = guarantee.state_timeout_s + guarantee.slack_s
    return np.asarray(received_ns - last > limit_s * NANOSECONDS_PER_SECOND)


def _strays(
    commands: Commands, states: States, guarantee: Guarantee, is_first: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Return how far each command is from zero and how far it may be on that side, (N, n)."""
    effort, received = commands.effort_nm, commands.received_ns
    found, allowed = np.abs(effort), np.full_like(effort, np.inf)
    is_blind = _is_blind(received, states, guarantee)
    begins = is_blind & (is_first | ~np.concatenate([[False], is_blind[:-1]]))
    group = np.cumsum(begins)
    acted_s = np.minimum(_since_s(received), guarantee.period_s)
    rate = np.array(guarantee.arm.limits.effort_rate_nmps)
    for begin in np.flatnonzero(begins).tolist():
        rows = np.flatnonzero(is_blind & (group == group[begin]))
        before = effort[max(begin - 1, 0)]
        gravity = _last_gravity(received[begin], states, guarantee)
        blind_s = (received[rows] - received[begin]) / NANOSECONDS_PER_SECOND - guarantee.slack_s
        had_s = np.maximum(np.cumsum(acted_s[rows]) - guarantee.slack_s, 0.0)[:, np.newaxis]
        ramp_s = guarantee.blind_ramp_s
        share = np.clip(1.0 - blind_s / ramp_s, 0.0, 1.0) if ramp_s else 1.0 * (blind_s <= 0.0)
        share = np.asarray(share)[:, np.newaxis]
        ends = np.vstack([gravity, before])
        most = np.maximum(share * gravity.max(axis=0), 0.0)
        most = np.maximum(most, ends.max(axis=0) - rate * had_s)
        least = np.minimum(share * gravity.min(axis=0), 0.0)
        least = np.minimum(least, ends.min(axis=0) + rate * had_s)
        allowed[rows] = np.where(effort[rows] > 0.0, most, -least)
    return found, allowed


def _last_gravity(now_ns: int, states: States, guarantee: Guarantee) -> Array:
    """Return the gravity torques of the last states, shape (.., n); zero if none is known.

    Which of them was the last one the controller took, the listener cannot know exactly.
    """
    end = int(np.searchsorted(states.received_ns, now_ns, side='right'))
    if end == 0:
        return np.zeros((1, len(guarantee.arm.joint_names)))
    span_ns = round((guarantee.state_timeout_s + guarantee.slack_s) * NANOSECONDS_PER_SECOND)
    begin = int(np.searchsorted(states.received_ns, states.received_ns[end - 1] - span_ns))
    return chain_of(guarantee.arm).gravity_nm(states.q_rad[begin:end])
