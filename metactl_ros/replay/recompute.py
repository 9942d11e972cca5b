# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Ticks computed again by the controller of the node, from what a bag holds, and their figures.

    again = reproduce(log, arm, bundle.controller, bundle.policy)
    assert again.first_difference is None

Nothing of the recorded decisions goes in, so whatever comes out equal was computed from what the
bag holds. With another controller states and torques stay those of the recorded one: open loop,
what it would have done there, not how well it would have tracked.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.tick_log import TickLog
from metactl_ros.check.sent_commands import replaced_ticks
from metactl_ros.control.modes import Cause, Health, Mode
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.metrics import percentiles, tracking_rmse
from metactl_ros.runtime.controller import Controller, Tick, TickInputs, with_full_window
from metactl_ros.signals import ArmState, Array, NANOSECONDS_PER_SECOND, Policy, Reference

GUIDED = 'guided by hand, where no Lyapunov condition applies'
SETTLED = 2
"""Windows after a gap from which on every tick is compared, equal or not."""


class Difference(NamedTuple):
    """Where a tick computed again is not what was recorded."""

    tick: int
    """Number in the log, from 0."""
    time_s: float
    """Since the first tick."""
    quantity: str
    """mode, action, estimate, gain, effort or command."""
    joint_or_gain: str
    recorded: float
    recomputed: float


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What the loop decided this time; row k belongs to tick k of the log."""

    effort_nm: Array
    """Shape (T, n)."""
    gains: Array
    """theta in force, shape (T, m)."""
    gain_names: tuple[str, ...]
    """Of this controller; in open loop they may be others than the recorded ones."""
    estimate_nm: Array | None
    """What the model is estimated to lack, shape (T, n); None without an estimator."""
    modes: NDArray[np.int64]
    """Shape (T,)."""
    action: Array
    """What the policy proposed, shape (T, m)."""
    was_moved: NDArray[np.bool_]
    """Whether the shield moved or replaced the proposal, shape (T,)."""
    is_compared: NDArray[np.bool_]
    """Whether the loop knew what the recorded one knew, shape (T,); not after a gap, nor in open
    loop."""
    is_open_loop: bool
    """Whether another controller was asked than the recorded one."""
    quantities: tuple[str, ...] = ()
    """What both have, and was compared; beside the commands."""
    first_difference: Difference | None = None
    """None if all compared ticks are equal to the bit; always None in open loop."""
    largest_difference_nm: float = 0.0
    """Of an effort, over the compared ticks, N m."""


class _Pair(NamedTuple):
    """A quantity as it was recorded and as it was computed again, both of shape (T, k)."""

    recorded: Array
    recomputed: Array
    names: Sequence[str]
    """Of the columns."""

    def differs(self) -> NDArray[np.bool_]:
        """Return where the two are not equal to the bit, shape (T, k); NaN equals NaN."""
        bits = np.ascontiguousarray(self.recomputed).view(np.uint64)
        are_nan = np.isnan(self.recorded) & np.isnan(self.recomputed)
        return np.asarray((self.recorded.view(np.uint64) != bits) & ~are_nan)


def reproduce(
    log: TickLog,
    arm: ArmModel,
    controller: ControllerSettings,
    policy: Policy | None,
    *,
    is_open_loop: bool = False,
) -> Reproduction:
    """Return the ticks of a log computed again, by the code that computed them on the robot.

    A loop begins anew where it did, and where the log has a gap. Without a policy the gains are
    the nominal ones. In open loop it is another controller than the recorded one: what acted is
    then the recorded effort, and nothing is compared.
    """
    ticks = list(_ticks_again(log, Controller(arm, controller, policy), is_open_loop=is_open_loop))
    steps = [tick.step for tick in ticks]
    estimates = [step.estimate_nm for step in steps if step.estimate_nm is not None]
    again = Reproduction(
        effort_nm=np.stack([step.effort_nm for step in steps]),
        gains=np.stack([step.decision.gains.theta for step in steps]),
        gain_names=gain_names(controller, log.joint_names),
        estimate_nm=np.stack(estimates) if estimates else None,
        modes=np.array([int(step.modes) for step in steps]),
        action=np.array([tick.action for tick in ticks])[:, : steps[0].decision.gains.theta.size],
        was_moved=np.array([bool(step.decision.was_moved) for step in steps]),
        is_compared=np.zeros(len(ticks), dtype=bool),
        is_open_loop=is_open_loop,
    )
    if is_open_loop:
        return again
    may_differ = (log.command_row < 0) | replaced_ticks(log, arm, controller) | log.is_shadow
    return _compared(log, again, with_full_window(controller).modes.warmup_ticks, ~may_differ)


def gain_names(controller: ControllerSettings, joint_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all gains of a controller, such as kd_per_s.joint1."""
    ends = controller.gain_box.named_ends()
    return tuple(f'{name}.{joint}' for name, _ in ends for joint in joint_names)


def _compared(
    log: TickLog, again: Reproduction, num_rows: int, is_command_compared: NDArray[np.bool_]
) -> Reproduction:
    """Return the same with where it differs from the log.

    After `num_rows` ticks a window holds nothing from before a gap; `is_command_compared` is where
    the effort sent must be the one decided, shape (T,).
    """
    pairs = _pairs(log, again)
    differs = {quantity: pair.differs() for quantity, pair in pairs.items()}
    is_equal = ~np.any([rows.any(axis=1) for rows in differs.values()], axis=0)
    is_restart = None if again.estimate_nm is None else log.is_restart
    is_compared = compared_ticks(log.is_break, is_equal, num_rows, is_restart)
    differs = {quantity: rows & is_compared[:, np.newaxis] for quantity, rows in differs.items()}
    command = _Pair(log.sent_nm, log.effort_nm, log.joint_names)
    wrong = {'command': command.differs() & is_command_compared[:, np.newaxis]}
    far = np.abs(again.effort_nm - log.effort_nm)[is_compared]
    return replace(
        again,
        quantities=tuple(pairs),
        is_compared=is_compared,
        first_difference=_first_difference(log, pairs | {'command': command}, differs | wrong),
        largest_difference_nm=float(far.max()) if far.size else 0.0,
    )


def _pairs(log: TickLog, again: Reproduction) -> dict[str, _Pair]:
    """Return what can be compared, by its name, in the order in which a tick computes it.

    A controller that is none of the recorded one's kind has other gains, or no estimate.
    """
    mode = log.shield['mode'][:, np.newaxis], again.modes[:, np.newaxis].astype(np.float64)
    candidates = (
        ('mode', *mode, ('mode',)),
        ('action', log.action, again.action, log.gain_names),
        ('estimate', log.estimate_nm, again.estimate_nm, log.joint_names),
        ('gain', log.gains, again.gains, log.gain_names),
        ('effort', log.effort_nm, again.effort_nm, log.joint_names),
    )
    return {
        quantity: _Pair(recorded, recomputed, names)
        for quantity, recorded, recomputed, names in candidates
        if recorded is not None and recomputed is not None and recorded.shape == recomputed.shape
    }


def _first_difference(
    log: TickLog, pairs: Mapping[str, _Pair], differs: Mapping[str, NDArray[np.bool_]]
) -> Difference | None:
    """Return the earliest difference, of equal ticks that of the quantity computed first."""
    found = []
    for order, (quantity, (recorded, recomputed, names)) in enumerate(pairs.items()):
        rows = differs[quantity]
        if rows.any():
            tick = int(np.argmax(rows.any(axis=1)))
            column = int(np.argmax(rows[tick]))
            values = float(recorded[tick, column]), float(recomputed[tick, column])
            time_s = float(log.time_s[tick])
            found.append((tick, order, Difference(tick, time_s, quantity, names[column], *values)))
    return min(found)[2] if found else None


def compared_ticks(
    is_break: NDArray[np.bool_],
    is_equal: NDArray[np.bool_],
    num_rows: int,
    is_restart: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Return which ticks a loop can know all about that the recorded one knew, shape (T,).

    After a gap its window is filled with states from before it, its modes and its last effort are
    others. It has settled with the first equal tick after a window of new states, or at the latest
    after two. What an estimator remembers never becomes equal to the bit again: for a loop with
    one `is_restart` is given, shape (T,), and it has settled with the next restart.
    """
    is_compared = np.ones_like(is_equal)
    for begin in np.flatnonzero(is_break):
        if is_restart is None:
            window = is_equal[begin + num_rows : begin + SETTLED * num_rows]
            num_unknown = num_rows + (int(np.argmax(window)) if window.any() else len(window))
        else:
            later = is_restart[begin:]
            num_unknown = int(np.argmax(later)) if later.any() else len(later)
        is_compared[begin : begin + num_unknown] = False
    return is_compared


def _ticks_again(log: TickLog, controller: Controller, *, is_open_loop: bool) -> Iterator[Tick]:
    """Yield each tick, as the controller computes it from the inputs of the log."""
    acted: list[Array] = []  # the recorded efforts since the last state
    for k, inputs in enumerate(_recorded_inputs(log)):
        before_nm = log.effort_before_nm[k]
        if log.is_restart[k] or log.is_break[k]:
            first = inputs.seen[0][0] if inputs.seen else inputs.state
            is_carried = k > 0 and bool((before_nm == log.effort_nm[k - 1]).all())
            if first.stamp_ns == 0 or log.is_break[k] or not is_carried:
                controller.begin(first if first.stamp_ns == 0 else inputs.state, before_nm)
            else:
                controller.clear_context()
            acted = []
        elif log.is_resumed[k]:
            controller.resume(before_nm)
            acted = []
        acted.append(before_nm)
        if inputs.seen:
            if is_open_loop:
                others = [before_nm] * (len(inputs.seen) - 1)
                inputs = inputs._replace(acted_nm=[np.mean(acted, axis=0), *others])
            acted = []
        yield controller.tick(inputs)


def _recorded_inputs(log: TickLog) -> Iterator[TickInputs]:
    """Yield the inputs of each tick."""
    seen = log.seen
    columns = [log.shield[name].tolist() for name in Health._fields]
    payloads_kg = log.shield['payload_estimate_kg'].tolist()
    places, nows_ns = seen.begin.tolist(), log.now_ns.tolist()
    states = map(ArmState, seen.stamp_ns.tolist(), seen.q_rad, seen.qd_radps)
    goals = map(Reference, seen.q_desired_rad, seen.qd_desired_radps, seen.qdd_desired_radps2)
    pairs = list(zip(states, goals, strict=True))
    for k, (fresh, goal, on_time, error, reset) in enumerate(zip(*columns, strict=True)):
        rows = pairs[places[k] : places[k + 1]]
        state, reference = rows[-1]
        yield TickInputs(
            now_ns=state.stamp_ns,
            loop_ns=nows_ns[k],
            seen=rows if log.num_states[k] else (),
            state=state,
            reference=reference,
            payload_kg=payloads_kg[k],
            health=Health(
                fresh != 0.0, goal != 0.0, on_time != 0.0, Cause(int(error)), reset != 0.0
            ),
        )


def summarise(log: TickLog, *, follows: bool) -> dict[str, Any]:
    """Return the figures of a recording; those that nothing was measured for are None.

    A controller that `follows` nothing has no tracking error.
    """
    return {
        'num_ticks': len(log.stamp_ns),
        'duration_s': float(log.time_s[-1]),
        'rmse_rad': rmse(log) if follows else dict.fromkeys((*log.joint_names, 'total')),
        'effort': effort_figures(log.effort_nm, log.joint_names),
        'gains': gain_figures(log.gains, log.gain_names),
        'shield_activation': float(np.mean(log.shield['was_moved'])),
        'mode_share': mode_share(log.shield['mode']),
        'timing': timing(log),
    }


def tick_counts(
    log: TickLog,
    again: Reproduction,
    is_uncertified: NDArray[np.bool_],
    is_guided: NDArray[np.bool_],
) -> dict[str, Any]:
    """Return how many ticks were compared and certified, and why the others were not.

    Of those in `is_uncertified`, shape (T,), no certificate could be checked; on those in
    `is_guided`, by hand, the Lyapunov condition says nothing.
    """
    num_ticks = len(log.stamp_ns)
    rows = np.flatnonzero(~again.is_compared)
    last_break = np.maximum.accumulate(np.where(log.is_break, np.arange(num_ticks), 0))[rows]
    is_first = last_break == 0
    reasons = {
        'a message of the tick is missing': log.num_incomplete,
        'impossible values': log.num_impossible,
        'open loop': num_ticks if again.is_open_loop else 0,
        'the recording begins in the middle of a run': np.sum(is_first),
        'what the loop knew is missing after a gap': np.sum(~is_first),
    }
    if again.is_open_loop:  # which is reason enough
        reasons |= dict.fromkeys([*reasons][-2:], 0)
    return {
        'recorded': num_ticks + log.num_incomplete + log.num_impossible,
        'compared': int(again.is_compared.sum()),
        'not_compared': {why: int(count) for why, count in reasons.items() if count},
        'quantities_compared': list(again.quantities),
        'certified': int(np.sum(~is_uncertified & ~is_guided)),
        'not_certified': {
            'a hold begun in a gap': int(np.sum(is_uncertified)),
            **({GUIDED: int(np.sum(is_guided))} if is_guided.any() else {}),
        },
    }


def rmse(log: TickLog) -> dict[str, float | None]:
    """Return the tracking error of each joint and of all, rad, over the ticks that had a goal."""
    rows = (log.num_states > 0) & (log.shield['reference_is_valid'] != 0.0)
    wanted, found = log.q_desired_rad[rows], log.q_rad[rows]
    if len(found) < 2:  # the first one does not count
        return dict.fromkeys((*log.joint_names, 'total'))
    one = {
        name: float(tracking_rmse(wanted[:, [j]], found[:, [j]]))
        for j, name in enumerate(log.joint_names)
    }
    return {**one, 'total': float(tracking_rmse(wanted, found))}


def effort_figures(effort_nm: Array, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return size, peak and total variation of the effort of each joint, N m."""
    return {
        name: {
            'rms_nm': float(np.sqrt(np.mean(np.square(column)))),
            'peak_nm': float(np.abs(column).max()),
            'total_variation_nm': float(np.abs(np.diff(column)).sum()),
        }
        for name, column in zip(names, effort_nm.T, strict=True)
    }


def gain_figures(gains: Array, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return mean and ends of each gain in force."""
    return {
        name: {'mean': float(x.mean()), 'min': float(x.min()), 'max': float(x.max())}
        for name, x in zip(names, gains.T, strict=True)
    }


def mode_share(modes: NDArray[Any]) -> dict[str, float]:
    """Return the share of ticks in each mode."""
    counts = Counter(Mode(int(mode)).name for mode in modes)
    return {name: count / len(modes) for name, count in counts.items()}


def timing(log: TickLog) -> dict[str, Any]:
    """Return rate, missed ticks, lateness and inference time."""
    steps_ns = np.diff(log.now_ns)[~log.is_restart[1:]]
    steps_ns = steps_ns[steps_ns > 0]
    period_ns = float(np.median(steps_ns)) if len(steps_ns) else math.inf
    missed = np.maximum(np.rint(steps_ns / period_ns) - 1.0, 0.0).sum()
    inference_ms = log.shield['inference_ms']
    return {
        'rate_hz': NANOSECONDS_PER_SECOND / float(steps_ns.mean()) if len(steps_ns) else None,
        'missed_ticks': int(missed),
        'lateness_ms': percentiles(log.shield['late_ms']),
        'inference_ms': percentiles(inference_ms[inference_ms > 0.0]),
    }
