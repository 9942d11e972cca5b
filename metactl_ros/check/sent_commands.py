# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Whether what was sent is what was decided: both command topics of a bag against its ticks.

Each tick must have one message on joint_commands, with its stamp, and one on
forward_effort_controller/commands, which has no stamp, in its place in their order. Each must be
for exactly the arm's joints, finite, and equal to the bit to the effort decided. Nothing is passed
over; whatever is not such a pair is counted under one of these names:

    replaced        the effort decided is beyond size or rate, and what was sent in its place is
                    within both: the last check before sending did that
    not_heard_yet   ticks before the first command of a run. A recorder gets commands only once it
                    has found their publisher, while ticks are kept for it: it must have received
                    them within JOIN_S of that command
    cut_off         ticks after the last command of the bag, received at most CUT_S later: topics
                    are fetched one after the other, and the recording ended in between
    withheld        ticks before a pause of the controller, after which it went on from what acts:
                    what was decided before a pause is not sent after it
    lost            ticks whose command was sent, as the publisher's numbers show, but is not in
                    the bag; the bag is partial
    missing         all other ticks without a command; a violation
    fading          commands after the last tick of a run: the torque goes to zero after an error,
                    or the last zero. Each joint goes towards zero within its rate, for at most as
                    long as a controller may take to notice the error and to fade
    untold          other commands within size and rate, at most CUT_S after the last tick of a
                    run: the controller or the recorder ended before the tick was published
    in_gaps         commands within size where ticks are missing from the log; the bag is partial
    foreign         all other commands; a violation

A controller in shadow sends nothing: commands on its topics are of another node, and only counted.
"""

from collections import Counter
from itertools import pairwise
from typing import NamedTuple, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.command_log import align, CommandLog
from metactl_ros.bag.topics import FORWARD, STAMPED
from metactl_ros.check.certificates import SLACK_NM, Violation
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND, period_ns_of

if TYPE_CHECKING:
    from metactl_ros.bag.tick_log import TickLog
    from metactl_ros.control.settings import ControllerSettings
    from metactl_ros.dynamics.rigid_body import ArmModel

NOTICE_S = 2.0
"""How long a controller may take to notice that its control hangs, on a machine that stalls."""
JOIN_S = 2.0
"""How far apart a recorder may find the publishers of one controller; 0.02 s is usual."""
CUT_S = 0.25
"""How far apart the topics of a recording may end, of a recorder on a machine that stalls."""
TOLERATED = ('fading', 'untold', 'in_gaps')
"""Commands without a tick that are as they may be; the other topic must have them, too."""
KINDS = ('not_heard_yet', 'cut_off', 'withheld', 'lost', 'missing', *TOLERATED, 'foreign')


class SentCheck(NamedTuple):
    """What was found on the command topics."""

    counts: dict[str, dict[str, int]]
    """By topic: how many were `recorded` and `compared`, and the names above."""
    violations: list[Violation]
    problems: tuple[str, ...]
    """Why not all commands are known; empty if they are."""
    is_shadow: bool = False
    """Whether the controller sent no commands."""


class _Limits(NamedTuple):
    """What a command without a tick must keep to."""

    effort_nm: Array
    """Shape (n,)."""
    step_nm: Array
    """From one command to the next, shape (n,)."""
    fade_s: float
    """How long after the last tick of a run a torque may still be on its way to zero."""


class _Expected(NamedTuple):
    """The commands that a topic should have, in order."""

    effort_nm: Array
    """Shape (M, n)."""
    tick: NDArray[np.int64]
    """Whose it is, or after which it came; shape (M,)."""
    publish_time_ns: NDArray[np.int64]
    """No later than that of the command, shape (M,)."""
    log_time_ns: NDArray[np.int64]
    """When the recorder received it, shape (M,)."""


class _Topic(NamedTuple):
    """A command topic: what it holds, and what it should."""

    name: str
    """By which it is called in the result."""
    commands: CommandLog
    expected: _Expected
    answers: NDArray[np.int64]
    """Which of the expected commands each message answers; -1 for none, shape (N,)."""


def check_sent(log: 'TickLog', arm: 'ArmModel', controller: 'ControllerSettings') -> SentCheck:
    """Return what is wrong with the commands of a log, and how many of them were compared."""
    topics = {STAMPED: log.stamped, FORWARD: log.forward}
    if log.is_shadow:
        counts = {name: {'recorded': len(topic.names)} for name, topic in topics.items()}
        return SentCheck(counts, [], (), is_shadow=True)
    limits = _limits(arm, controller)
    was_replaced = replaced_ticks(log, arm, controller)
    decided = np.where(was_replaced[:, np.newaxis], log.sent_nm, log.effort_nm)
    every_tick = np.arange(len(decided))
    expected = _Expected(decided, every_tick, log.publish_time_ns, log.log_time_ns)
    answers = np.full(len(log.stamped.names), -1, dtype=np.int64)
    has_command = log.command_row >= 0
    answers[log.command_row[has_command]] = every_tick[has_command]
    kinds, stamped = _judge_topic(log, _Topic(STAMPED, log.stamped, expected, answers), limits)
    is_tolerated = np.array([kind in TOLERATED for kind in kinds], dtype=bool)
    expected = _with_tolerated(log, expected, answers, is_tolerated)
    answers = align(
        [row.tobytes() for row in expected.effort_nm],
        expected.publish_time_ns,
        [row.tobytes() if np.isfinite(row).all() else b'' for row in log.forward.effort_nm],
        log.forward.publish_time_ns,
    )
    _, forward = _judge_topic(log, _Topic(FORWARD, log.forward, expected, answers), limits)
    stamped.counts[STAMPED]['replaced'] = int(was_replaced.sum())
    # Ticks that went on from a replaced effort as if that had been sent.
    after = np.zeros_like(was_replaced)
    after[1:] = was_replaced[:-1] & (log.command_row[1:] >= 0)
    what = f'{STAMPED}: beyond its rate after a replaced one'
    leaps = [
        Violation(int(k), float(log.time_s[k]), what, 1.0, 0.0)
        for k in np.flatnonzero(after & ~_are_allowed(log, limits)[1])
    ]
    violations = [*stamped.violations, *forward.violations, *leaps]
    return SentCheck(
        stamped.counts | forward.counts,
        sorted(violations, key=lambda found: found.tick),
        (*stamped.problems, *forward.problems),
    )


def replaced_ticks(
    log: 'TickLog', arm: 'ArmModel', controller: 'ControllerSettings'
) -> NDArray[np.bool_]:
    """Return where the last check before sending put another effort in place, shape (T,)."""
    decided_is_allowed, sent_is_allowed = _are_allowed(log, _limits(arm, controller))
    is_other = (log.command_row >= 0) & (log.sent_nm != log.effort_nm).any(axis=1)
    return np.asarray(is_other & ~decided_is_allowed & sent_is_allowed)


def _are_allowed(log: 'TickLog', limits: _Limits) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which efforts decided, and which sent, are within size and rate, shapes (T,).

    The rate counts from what was sent last, which after a replacement is not what was decided; at
    the begin of a run and after a pause from what acts on the arm, as the tick records it.
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


def _limits(arm: 'ArmModel', controller: 'ControllerSettings') -> _Limits:
    effort, rate = np.array(arm.limits.effort_nm), np.array(arm.limits.effort_rate_nmps)
    period_s = period_ns_of(controller.law.rate_hz) / NANOSECONDS_PER_SECOND
    fade_s = NOTICE_S + controller.modes.blind_ramp_s + float((effort / rate).max())
    return _Limits(effort + SLACK_NM, rate * period_s + SLACK_NM, fade_s)


def _with_tolerated(
    log: 'TickLog',
    of_ticks: _Expected,
    answers: NDArray[np.int64],
    is_tolerated: NDArray[np.bool_],
) -> _Expected:
    """Return the commands of every tick and, where they came, those that need none."""
    stamped, rows = log.stamped, np.flatnonzero(is_tolerated)
    # A tick is published after its commands; they came after the tick before was published.
    publish_ns = np.concatenate([[0], log.publish_time_ns[:-1]])
    ticks = np.concatenate([of_ticks.tick, _ticks_before(log, answers)[rows]])
    order = np.argsort(ticks, kind='stable')
    return _Expected(
        np.concatenate([of_ticks.effort_nm, stamped.effort_nm[rows]])[order],
        np.maximum(ticks, 0)[order],
        np.concatenate([publish_ns, stamped.publish_time_ns[rows]])[order],
        np.concatenate([log.log_time_ns, stamped.log_time_ns[rows]])[order],
    )


def _ticks_before(log: 'TickLog', answers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return after which tick each stamped command came, shape (N,); -1 for before the first.

    Times decide where the commands of some ticks are missing; the order of the others holds.
    """
    num_ticks = len(log.stamp_ns)
    earliest = np.maximum.accumulate(answers)
    nexts = np.where(answers < 0, num_ticks, answers)
    latest = np.minimum.accumulate(nexts[::-1])[::-1] - 1
    published = np.searchsorted(log.publish_time_ns, log.stamped.publish_time_ns, side='right') - 1
    return np.clip(published, earliest, np.maximum(latest, earliest))


def _judge_topic(log: 'TickLog', topic: _Topic, limits: _Limits) -> tuple[list[str], SentCheck]:
    """Return what each message of a topic is, compared or one of KINDS, and what was found.

    The limits are for messages that answer none.
    """
    name, commands, expected, answers = topic
    kinds = _kinds_of_messages(log, topic, limits)
    is_own = np.array([kind != 'foreign' for kind in kinds], dtype=bool)
    num_lost = _lost_before(commands.sequence, is_own)
    absent = _kinds_of_absent(log, topic, is_own, num_lost)
    counts = Counter(kinds) + Counter(absent.values())
    problems = []
    if num_lost.any():
        problems.append(
            f'{commands.topic}: {num_lost.sum()} commands were sent, as their numbers tell, that '
            'are not in the bag'
        )
    if not counts['compared']:
        problems.append(
            f'{commands.topic}: no command of a tick is in the bag, {len(kinds)} others are; what '
            'was sent is not known'
        )
    bad = _wrong_pairs(topic)
    before = expected.tick[np.maximum.accumulate(np.maximum(answers, 0))]
    bad += [(before[row], 'of no tick', 1.0) for row in np.flatnonzero(~is_own)]
    is_late = (answers >= 0) & (answers < np.maximum.accumulate(answers))
    bad += [(expected.tick[answers[row]], 'out of order', 1.0) for row in np.flatnonzero(is_late)]
    if kinds:  # else nothing was recorded at all, which is a problem of the bag
        bad += [(expected.tick[e], 'missing', 1.0) for e, k in absent.items() if k == 'missing']
    times = log.time_s
    violations = [
        Violation(int(tick), float(times[tick]), f'{name}: {what}', found, 0.0)
        for tick, what, found in bad
    ]
    all_counts = {'recorded': len(kinds), **{kind: counts[kind] for kind in ('compared', *KINDS)}}
    return kinds, SentCheck({name: all_counts}, violations, tuple(problems))


def _wrong_pairs(topic: _Topic) -> list[tuple[int, str, float]]:
    """Return the tick of each wrong command, what is wrong with it, and by how much."""
    _, commands, expected, answers = topic
    rows = np.flatnonzero(answers >= 0)
    wanted, found = expected.effort_nm[answers[rows]], commands.effort_nm[rows]
    is_same = (wanted.view(np.uint64) == found.view(np.uint64)).all(axis=1)
    is_same &= np.isfinite(found).all(axis=1)
    wrong = []
    for row, want, find in zip(rows[~is_same], wanted[~is_same], found[~is_same], strict=True):
        tick = int(expected.tick[answers[row]])
        if not commands.is_for_arm[row]:
            wrong.append((tick, 'not for these joints', 1.0))
        elif not np.isfinite(find).all():
            wrong.append((tick, 'not finite', float(np.sum(~np.isfinite(find)))))
        else:
            # Zeros of two signs are apart by nothing, and are not equal to the bit.
            apart = float(np.max(np.abs(find - want)))
            wrong.append((tick, 'not as decided', max(apart, np.finfo(np.float64).tiny)))
    return wrong


def _kinds_of_messages(log: 'TickLog', topic: _Topic, limits: _Limits) -> list[str]:
    """Return what each message is: compared, or one of the kinds without a tick."""
    _, commands, expected, answers = topic
    run, num_gaps = np.cumsum(log.begins_run), np.cumsum(log.is_break)
    answering = np.flatnonzero(answers >= 0)
    following = np.searchsorted(answering, np.arange(len(answers)))
    last_of_run = dict(zip(run[expected.tick].tolist(), expected.effort_nm, strict=True))
    kinds: list[str] = []
    last, efforts = -1, np.zeros((0, 0))
    for row, answer in enumerate(answers.tolist()):
        if answer >= 0:
            # The next one goes on from here, or from the last tick if what that sent is missing.
            at_end = last_of_run[int(run[expected.tick[answer]])]
            last, efforts = row, np.stack([expected.effort_nm[answer], at_end])
            kinds.append('compared')
            continue
        sent = commands.effort_nm[row]
        after = int(answering[following[row]]) if following[row] < len(answering) else -1
        since_s, until_s = (
            (commands.log_time_ns[b] - commands.log_time_ns[a]) / NANOSECONDS_PER_SECOND
            for a, b in ((last, row), (row, after))
        )
        ticks = [int(expected.tick[answers[place]]) for place in (last, after) if place >= 0]
        kind = 'foreign'
        if not (np.abs(sent) <= limits.effort_nm).all():  # nor is NaN
            pass
        elif int(commands.stamp_ns[row]) in log.left_out_ns:
            kind = 'in_gaps'
        elif last < 0:
            is_soon = after >= 0 and until_s <= JOIN_S
            kind = 'in_gaps' if log.is_break[0] and is_soon else kind
        elif after >= 0 and run[ticks[0]] == run[ticks[1]]:
            kind = 'in_gaps' if num_gaps[ticks[0]] < num_gaps[ticks[1]] else kind
        else:
            is_near = (np.abs(sent - efforts) <= limits.step_nm).all(axis=1)
            fades = (sent * efforts >= 0.0) & (np.abs(sent) <= np.abs(efforts))
            goes_on = is_near & efforts.any(axis=1)  # after zero nothing does
            kind = 'untold' if goes_on.any() and since_s <= CUT_S else kind
            is_fading = (is_near & fades.all(axis=1)).any() and since_s <= limits.fade_s
            kind = 'fading' if is_fading else kind
            efforts = efforts if kind == 'foreign' else sent[np.newaxis]
        kinds.append(kind)
    return kinds


def _kinds_of_absent(
    log: 'TickLog', topic: _Topic, is_own: NDArray[np.bool_], num_lost: NDArray[np.int64]
) -> dict[int, str]:
    """Return why each expected command is not there, by its number.

    `is_own` are the messages that are not foreign, `num_lost` how many are missing before each.
    """
    _, commands, expected, answers = topic
    row_of = np.full(len(expected.tick), -1, dtype=np.int64)
    answering = np.flatnonzero(answers >= 0)
    row_of[answers[answering]] = answering
    kinds = dict.fromkeys(np.flatnonzero(row_of < 0).tolist(), 'missing')
    goes_on = np.append(log.is_resumed[1:], False)
    kinds |= {e: 'withheld' for e in kinds if goes_on[expected.tick[e]]}
    if not kinds or not len(answering):
        return kinds
    run_of = np.cumsum(log.begins_run)[expected.tick]
    for run in np.unique(run_of[[*kinds]]):
        members = np.flatnonzero(run_of == run)
        answered = members[row_of[members] >= 0]
        first = int(answered[0]) if len(answered) else int(members[-1]) + 1
        heard_ns = expected.log_time_ns[members[-1]]
        heard_ns = commands.log_time_ns[row_of[first]] if len(answered) else heard_ns
        for e in members[members < first].tolist():
            if abs(expected.log_time_ns[e] - heard_ns) <= JOIN_S * NANOSECONDS_PER_SECOND:
                kinds[e] = 'not_heard_yet'
    if answering[-1] == np.flatnonzero(is_own)[-1]:
        end_ns = commands.log_time_ns[answering[-1]] + CUT_S * NANOSECONDS_PER_SECOND
        for e in range(int(answers.max()) + 1, len(row_of)):
            kinds[e] = 'cut_off' if expected.log_time_ns[e] <= end_ns else kinds[e]
    lost_until = np.cumsum(num_lost)
    answered = np.flatnonzero(row_of >= 0)
    for a, b in pairwise(answered.tolist()):
        num_sent = lost_until[row_of[b]] - lost_until[row_of[a]]
        if 0 < b - a - 1 <= num_sent:
            kinds |= dict.fromkeys([e for e in range(a + 1, b) if kinds[e] == 'missing'], 'lost')
    return kinds


def _lost_before(sequence: NDArray[np.int64], is_own: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many messages are missing before each, by the numbers of its publisher; (N,).

    None are before the first one, nor before the first of another publisher, which counts anew.
    Numbers that hardly ever go up by one are no such numbers.
    """
    num_lost = np.zeros(len(sequence), dtype=np.int64)
    rows = np.flatnonzero(is_own)
    steps = np.diff(sequence[rows])
    if not len(steps) or np.mean(steps == 1) <= 0.5:
        return num_lost
    for k in np.flatnonzero(steps > 1):
        before, row = rows[k], rows[k + 1]
        between = sequence[before + 1 : row]  # judged as foreign, but there
        is_there = (between > sequence[before]) & (between < sequence[row])
        num_lost[row] = max(steps[k] - 1 - len(np.unique(between[is_there])), 0)
    return num_lost
