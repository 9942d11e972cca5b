# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""One command topic of a bag, judged message by message; the rules are in `sent_commands.py`."""

from collections import Counter
from itertools import pairwise
from typing import NamedTuple, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.command_log import CommandLog
from metactl_ros.check.certificates import Violation
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from metactl_ros.bag.tick_log import TickLog

JOIN_S = 2.0
"""How far apart a recorder may find the publishers of one controller; 0.02 s is usual."""
CUT_S = 0.25
"""How far apart the topics of a recording may end, of a recorder on a machine that stalls."""
TOLERATED = ('fading', 'untold', 'in_gaps')
"""Commands without a tick that are as they may be; the other topic must have them, too."""
KINDS = ('not_heard_yet', 'cut_off', 'withheld', 'lost', 'missing', *TOLERATED, 'foreign')


class CommandLimits(NamedTuple):
    """What a command without a tick must keep to."""

    effort_nm: Array
    """Shape (n,)."""
    step_nm: Array
    """From one command to the next, shape (n,)."""
    fade_s: float
    """How long after the last tick of a run a torque may still be on its way to zero."""


class Expected(NamedTuple):
    """The commands that a topic should have, in order."""

    effort_nm: Array
    """Shape (M, n)."""
    tick: NDArray[np.int64]
    """Whose it is, or after which it came; shape (M,)."""
    publish_time_ns: NDArray[np.int64]
    """No later than that of the command, shape (M,)."""
    log_time_ns: NDArray[np.int64]
    """When the recorder heard of it, shape (M,)."""


class TopicCheck(NamedTuple):
    """What was found on a command topic."""

    kinds: list[str]
    """Of each message: compared, or one of KINDS."""
    counts: dict[str, int]
    """`recorded` messages, those `compared` with a tick, and all KINDS."""
    violations: list[Violation]
    problems: tuple[str, ...]
    """Why not all commands are known."""


def judge_topic(
    name: str,
    log: 'TickLog',
    commands: CommandLog,
    expected: Expected,
    answers: NDArray[np.int64],
    limits: CommandLimits,
) -> TopicCheck:
    """Return what is to be said of a topic.

    Args:
        name: By which it is called in the result.
        log: The ticks.
        commands: All messages of the topic.
        expected: What it should hold.
        answers: Which of these each message answers, in order; -1 for none. Shape (N,).
        limits: For messages that answer none.
    """
    kinds = _kinds_of_messages(log, commands, expected, answers, limits)
    is_own = np.array([kind != 'foreign' for kind in kinds], dtype=bool)
    num_lost = _lost_before(commands.sequence, is_own)
    absent = _kinds_of_absent(log, commands, expected, answers, is_own, num_lost)
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
    bad = _wrong_pairs(commands, expected, answers)
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
    told = {'recorded': len(kinds), **{kind: counts[kind] for kind in ('compared', *KINDS)}}
    return TopicCheck(kinds, told, violations, tuple(problems))


def _wrong_pairs(
    commands: CommandLog, expected: Expected, answers: NDArray[np.int64]
) -> list[tuple[int, str, float]]:
    """Return the tick of each wrong command, what is wrong with it, and by how much."""
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


def _kinds_of_messages(
    log: 'TickLog',
    commands: CommandLog,
    expected: Expected,
    answers: NDArray[np.int64],
    limits: CommandLimits,
) -> list[str]:
    """Return what each message is: compared, or one of the kinds without a tick."""
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
    log: 'TickLog',
    commands: CommandLog,
    expected: Expected,
    answers: NDArray[np.int64],
    is_own: NDArray[np.bool_],
    num_lost: NDArray[np.int64],
) -> dict[int, str]:
    """Return why each expected command is not there, by its number.

    `is_own` are the messages that are not foreign, `num_lost` how many are missing before each.
    """
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
