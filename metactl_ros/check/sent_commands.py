# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether what was sent is what was decided: both command topics of a bag against its ticks.

Each tick must have one message on joint_commands, with its stamp, and one on
forward_effort_controller/commands, which has no stamp, in its place in their order. Each must be
for exactly the arm's joints, finite, and equal to the bit to the effort decided. Nothing is passed
over; whatever is not such a pair is counted under one of these names:

    replaced        the effort decided is beyond size or rate, and what was sent in its place is
                    within both: the last check before sending did that
    not_heard_yet   ticks before the first command of a run. A recorder hears commands only once it
                    has found their publisher, while ticks are kept for it: it must have received
                    them within JOIN_S of that command
    cut_off         ticks after the last command of the bag, received at most CUT_S later: topics
                    are fetched one after the other, and the recording ended in between
    withheld        ticks before a pause of the controller, after which it went on from what acts:
                    what was decided before a pause is not sent after it
    lost            ticks whose command was sent, as the publisher's numbers tell, but is not in
                    the bag; the bag is partial
    missing         all other ticks without a command; a violation
    fading          commands after the last tick of a run: the torque goes to zero after an error,
                    or the last zero. Each joint goes towards zero within its rate, for at most as
                    long as a controller may take to notice the error and to fade
    untold          other commands within size and rate, at most CUT_S after the last tick of a
                    run: who sent or recorded them was ended before it told the tick
    in_gaps         commands within size where ticks are missing from the log; the bag is partial
    foreign         all other commands; a violation

A controller in shadow sends nothing: what is on its topics is somebody else's, and only counted.
"""

from typing import NamedTuple, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.alignment import align
from metactl_ros.bag.command_log import FORWARD, STAMPED
from metactl_ros.check.certificates import SLACK_NM, Violation
from metactl_ros.check.command_topic import CommandLimits, Expected, judge_topic, TOLERATED
from metactl_ros.signals import NANOSECONDS_PER_SECOND, period_ns_of

if TYPE_CHECKING:
    from metactl_ros.bag.tick_log import TickLog
    from metactl_ros.control.settings import ControllerSettings
    from metactl_ros.dynamics.two_link import Arm

NOTICE_S = 2.0
"""How long a controller may take to notice that its control hangs, on a machine that stalls."""


class SentCheck(NamedTuple):
    """What was found on the command topics."""

    is_shadow: bool
    counts: dict[str, dict[str, int]]
    """By topic: how many were `recorded` and `compared`, and the names above."""
    violations: list[Violation]
    problems: tuple[str, ...]
    """Why not all commands are known; empty if they are."""


def check_sent(log: 'TickLog', arm: 'Arm', controller: 'ControllerSettings') -> SentCheck:
    """Return what is wrong with the commands of a log, and how many of them were compared."""
    topics = {STAMPED: log.stamped, FORWARD: log.forward}
    if log.is_shadow:
        counts = {name: {'recorded': len(topic.names)} for name, topic in topics.items()}
        return SentCheck(True, counts, [], ())
    limits = _limits(arm, controller)
    was_replaced = replaced_ticks(log, arm, controller)
    decided = np.where(was_replaced[:, np.newaxis], log.sent_nm, log.effort_nm)
    every_tick = np.arange(len(decided))
    expected = Expected(decided, every_tick, log.publish_time_ns, log.log_time_ns)
    answers = np.full(len(log.stamped.names), -1, dtype=np.int64)
    has_command = log.command_row >= 0
    answers[log.command_row[has_command]] = every_tick[has_command]
    stamped = judge_topic(STAMPED, log, log.stamped, expected, answers, limits)
    is_tolerated = np.array([kind in TOLERATED for kind in stamped.kinds], dtype=bool)
    expected = _with_tolerated(log, expected, answers, is_tolerated)
    answers = align(
        [row.tobytes() for row in expected.effort_nm],
        expected.publish_time_ns,
        [row.tobytes() if np.isfinite(row).all() else b'' for row in log.forward.effort_nm],
        log.forward.publish_time_ns,
    )
    forward = judge_topic(FORWARD, log, log.forward, expected, answers, limits)
    return SentCheck(
        False,
        {STAMPED: stamped.counts | {'replaced': int(was_replaced.sum())}, FORWARD: forward.counts},
        sorted(
            [*stamped.violations, *forward.violations, *_leaps(log, was_replaced, limits)],
            key=lambda found: found.tick,
        ),
        (*stamped.problems, *forward.problems),
    )


def replaced_ticks(
    log: 'TickLog', arm: 'Arm', controller: 'ControllerSettings'
) -> NDArray[np.bool_]:
    """Return where the last check before sending put another effort in place, shape (T,)."""
    decided_is_allowed, sent_is_allowed = _are_allowed(log, _limits(arm, controller))
    is_other = (log.command_row >= 0) & (log.sent_nm != log.effort_nm).any(axis=1)
    return np.asarray(is_other & ~decided_is_allowed & sent_is_allowed)


def _are_allowed(
    log: 'TickLog', limits: CommandLimits
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which efforts decided, and which sent, are within size and rate, shapes (T,).

    The rate counts from what was sent last, which after a replacement is not what was decided; at
    the begin of a run and after a pause from what acts on the arm, as the tick tells.
    """
    before = log.effort_before_nm.copy()
    goes_on = ~(log.begins_run | log.is_break | log.is_resumed)
    goes_on[1:] &= log.command_row[:-1] >= 0
    goes_on[:1] = False
    before[goes_on] = log.sent_nm[np.flatnonzero(goes_on) - 1]
    decided, sent = (
        (np.abs(effort) <= limits.effort_nm) & (np.abs(effort - before) <= limits.step_nm)
        for effort in (log.effort_nm, log.sent_nm)  # false for NaN
    )
    return np.asarray(decided.all(axis=1)), np.asarray(sent.all(axis=1))


def _leaps(
    log: 'TickLog', was_replaced: NDArray[np.bool_], limits: CommandLimits
) -> list[Violation]:
    """Return the ticks that went on from a replaced effort as if that had been sent."""
    after = np.zeros_like(was_replaced)
    after[1:] = was_replaced[:-1] & (log.command_row[1:] >= 0)
    leaps = np.flatnonzero(after & ~_are_allowed(log, limits)[1])
    what = f'{STAMPED}: beyond its rate after a replaced one'
    return [Violation(int(k), float(log.time_s[k]), what, 1.0, 0.0) for k in leaps]


def _limits(arm: 'Arm', controller: 'ControllerSettings') -> CommandLimits:
    effort, rate = np.array(arm.limits.effort_nm), np.array(arm.limits.effort_rate_nmps)
    period_s = period_ns_of(controller.law.rate_hz) / NANOSECONDS_PER_SECOND
    fade_s = NOTICE_S + controller.modes.blind_ramp_s + float((effort / rate).max())
    return CommandLimits(effort + SLACK_NM, rate * period_s + SLACK_NM, fade_s)


def _with_tolerated(
    log: 'TickLog',
    of_ticks: Expected,
    answers: NDArray[np.int64],
    is_tolerated: NDArray[np.bool_],
) -> Expected:
    """Return the commands of every tick and, where they came, those that need none."""
    stamped = log.stamped
    # A tick is told after its commands; they came after the tick before was told.
    publish_ns = np.concatenate([[0], log.publish_time_ns[:-1]])
    rows = np.flatnonzero(is_tolerated)
    after_tick = _ticks_before(log, answers)[rows]
    ticks = np.concatenate([of_ticks.tick, after_tick])
    order = np.argsort(ticks, kind='stable')
    return Expected(
        np.concatenate([of_ticks.effort_nm, stamped.effort_nm[rows]])[order],
        np.maximum(ticks, 0)[order],
        np.concatenate([publish_ns, stamped.publish_time_ns[rows]])[order],
        np.concatenate([log.log_time_ns, stamped.log_time_ns[rows]])[order],
    )


def _ticks_before(log: 'TickLog', answers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return after which tick each stamped command came, shape (N,); -1 for before the first.

    Times tell it where the commands of some ticks are missing; the order of the others holds.
    """
    num_ticks = len(log.stamp_ns)
    earliest = np.maximum.accumulate(answers)
    nexts = np.where(answers < 0, num_ticks, answers)
    latest = np.minimum.accumulate(nexts[::-1])[::-1] - 1
    published = np.searchsorted(log.publish_time_ns, log.stamped.publish_time_ns, side='right') - 1
    return np.clip(published, earliest, np.maximum(latest, earliest))
