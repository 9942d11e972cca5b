# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Ticks computed again: the loop of the robot, driven by what a bag says it saw.

    again = reproduce(log, arm, bundle.controller, bundle.policy)
    assert again.first_difference is None

Nothing of the recorded decisions goes in, so whatever comes out equal was computed from what the
bag holds. With another controller states and torques stay those of the recorded one: open loop,
what it would have done there, not how well it would have tracked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.tick_log import TickLog
from metactl_ros.check.sent_commands import replaced_ticks
from metactl_ros.control.loop import ControlLoop, ControlStep
from metactl_ros.control.modes import Cause, Health
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.runtime.controller import propose, with_full_window, without_proposal
from metactl_ros.signals import ArmState, Array, Policy, Reference

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
    quantities: tuple[str, ...]
    """What both have, and was compared; beside the commands."""
    is_compared: NDArray[np.bool_]
    """Whether the loop knew what the recorded one knew, shape (T,); not after a gap, nor in open
    loop."""
    is_open_loop: bool
    """Whether another controller was asked than the recorded one."""
    first_difference: Difference | None
    """None if all compared ticks are equal to the bit; always None in open loop."""
    largest_difference_nm: float
    """Of an effort, over the compared ticks, N m."""


def reproduce(
    log: TickLog,
    arm: Arm,
    controller: ControllerSettings,
    policy: Policy | None,
    *,
    is_open_loop: bool = False,
) -> Reproduction:
    """Return the ticks of a log computed again, as `runtime/controller.py` computed them.

    Args:
        log: Of a bag; a loop begins anew where it did, and where the log has a gap.
        arm: The robot's.
        controller: Of the robot, with the window of the policy.
        policy: None for the nominal gains.
        is_open_loop: Whether it is another controller than the recorded one. What acted is then
            the recorded effort, and nothing is compared.
    """
    settings = with_full_window(controller)
    loop = ControlLoop(arm, settings)
    decisions = list(_ticks_again(log, loop, policy, is_open_loop))
    steps = [step for _, step in decisions]
    action = np.array([action for action, _ in decisions])
    effort = np.stack([step.effort_nm for step in steps])
    gains = np.stack([step.decision.gains.theta for step in steps])
    modes = np.array([int(step.modes) for step in steps])
    estimates = [step.estimate_nm for step in steps if step.estimate_nm is not None]
    estimate = np.stack(estimates) if estimates else None
    pairs = {
        'mode': (log.shield['mode'][:, np.newaxis], modes[:, np.newaxis].astype(float), ('mode',)),
        'action': (log.action, action, log.gain_names),
        'estimate': (log.estimate_nm, estimate, log.joint_names),
        'gain': (log.gains, gains, log.gain_names),
        'effort': (log.effort_nm, effort, log.joint_names),
    }
    # Another controller may have other gains, and no estimate; there is nothing to compare then.
    comparable = {
        quantity: (recorded, again, names)
        for quantity, (recorded, again, names) in pairs.items()
        if recorded is not None and again is not None and recorded.shape == again.shape
    }
    differs = {name: _differ(*pair) for name, (*pair, _) in comparable.items()}
    is_equal = ~np.any([rows.any(axis=1) for rows in differs.values()], axis=0)
    is_compared = compared_ticks(
        log.is_break,
        is_equal,
        settings.modes.warmup_ticks,
        None if estimate is None else log.is_restart,
    )
    is_compared &= not is_open_loop
    differs = {name: rows & is_compared[:, np.newaxis] for name, rows in differs.items()}
    quantities = () if is_open_loop else tuple(comparable)
    comparable['command'] = (log.sent_nm, log.effort_nm, log.joint_names)
    may_differ = (log.command_row < 0) | replaced_ticks(log, arm, controller) | log.is_shadow
    differs['command'] = _differ(log.sent_nm, log.effort_nm) & ~may_differ[:, np.newaxis]
    far = np.abs(effort - log.effort_nm)[is_compared]
    return Reproduction(
        effort_nm=effort,
        gains=gains,
        gain_names=tuple(
            f'{name}.{joint}'
            for name, _ in controller.gain_box.named_ends()
            for joint in log.joint_names
        ),
        estimate_nm=estimate,
        modes=modes,
        action=action,
        was_moved=np.array([bool(step.decision.was_moved) for step in steps]),
        quantities=quantities,
        is_compared=is_compared,
        is_open_loop=is_open_loop,
        first_difference=None if is_open_loop else _first_difference(log, comparable, differs),
        largest_difference_nm=float(far.max()) if far.size else 0.0,
    )


def _first_difference(
    log: TickLog,
    comparable: Mapping[str, tuple[Array, Array, Sequence[str]]],
    differs: Mapping[str, NDArray[np.bool_]],
) -> Difference | None:
    """Return the earliest difference, of equal ticks that of the quantity computed first."""
    found = []
    for order, (quantity, (recorded, again, names)) in enumerate(comparable.items()):
        rows = differs[quantity]
        if rows.any():
            tick = int(np.argmax(rows.any(axis=1)))
            column = int(np.argmax(rows[tick]))
            values = float(recorded[tick, column]), float(again[tick, column])
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


def _ticks_again(
    log: TickLog, loop: ControlLoop, policy: Policy | None, is_open_loop: bool
) -> Iterator[tuple[Array, ControlStep]]:
    """Yield the action and the step of each tick."""
    acted: list[Array] = []  # the recorded efforts since the last state
    seen, action = log.seen, loop.nominal_action
    columns = [log.shield[name].tolist() for name in Health._fields]
    healths = [
        Health(fresh != 0.0, goal != 0.0, on_time != 0.0, Cause(int(error)), reset != 0.0)
        for fresh, goal, on_time, error, reset in zip(*columns, strict=True)
    ]
    payloads = log.shield['payload_estimate_kg'].tolist()
    stamps, places, nows = seen.stamp_ns.tolist(), seen.begin.tolist(), log.now_ns.tolist()
    for k, health in enumerate(healths):
        sights = [
            (
                ArmState(stamps[i], seen.q_rad[i], seen.qd_radps[i]),
                Reference(
                    seen.q_desired_rad[i], seen.qd_desired_radps[i], seen.qdd_desired_radps2[i]
                ),
            )
            for i in range(places[k], places[k + 1])
        ]
        state, reference = sights[-1]
        if log.is_restart[k] or log.is_break[k]:
            begins = stamps[places[k]] == 0  # with the first state, else with the newest
            if begins or log.is_break[k] or not _goes_on(log, k):
                loop.reset(sights[0][0] if begins else state, log.effort_before_nm[k])
            else:
                loop.forget_context()
            action, acted = loop.nominal_action, []
        elif log.is_resumed[k]:
            loop.resume(log.effort_before_nm[k])
            acted = []
        acted.append(log.effort_before_nm[k])
        if log.num_states[k]:
            for sight in sights:
                effort = np.mean(acted, axis=0) if is_open_loop else None
                window = loop.observe(*sight, payloads[k], effort)
                acted = acted[-1:]
            acted = []
            if policy is not None:
                proposal = propose(policy, window, loop.gain_map.size)
                action = without_proposal(loop) if proposal is None else proposal
        yield action, loop.actuate(action, state, reference, nows[k], health)


def _goes_on(log: TickLog, k: int) -> bool:
    """Return whether a tick limits its rate from the effort of the one before it in the log."""
    return k > 0 and bool((log.effort_before_nm[k] == log.effort_nm[k - 1]).all())


def _differ(recorded: Array, again: Array) -> NDArray[np.bool_]:
    """Return where two arrays are not equal to the bit; NaN equals NaN."""
    is_other = recorded.view(np.uint64) != np.ascontiguousarray(again).view(np.uint64)
    differ: NDArray[np.bool_] = is_other & ~(np.isnan(recorded) & np.isnan(again))
    return differ
