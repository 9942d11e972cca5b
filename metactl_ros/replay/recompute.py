# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Ticks computed again: the controller of the node, given the inputs that a bag holds.

    again = reproduce(log, arm, bundle.controller, bundle.policy)
    assert again.first_difference is None

Nothing of the recorded decisions goes in, so whatever comes out equal was computed from what the
bag holds. With another controller states and torques stay those of the recorded one: open loop,
what it would have done there, not how well it would have tracked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metactl_ros.bag.tick_log import TickLog
from metactl_ros.check.sent_commands import replaced_ticks
from metactl_ros.control.modes import Cause, Health
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.runtime.controller import Controller, Tick, TickInputs, with_full_window
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
    arm: Arm,
    controller: ControllerSettings,
    policy: Policy | None,
    *,
    is_open_loop: bool = False,
) -> Reproduction:
    """Return the ticks of a log computed again, by the code that computed them on the robot.

    Args:
        log: Of a bag; a loop begins anew where it did, and where the log has a gap.
        arm: The robot's.
        controller: Of the robot, with the window of the policy.
        policy: None for the nominal gains.
        is_open_loop: Whether it is another controller than the recorded one. What acted is then
            the recorded effort, and nothing is compared.
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
        action=np.array([tick.action for tick in ticks]),
        was_moved=np.array([bool(step.decision.was_moved) for step in steps]),
        quantities=(),
        is_compared=np.zeros(len(ticks), dtype=bool),
        is_open_loop=is_open_loop,
        first_difference=None,
        largest_difference_nm=0.0,
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

    Args:
        log: What was recorded.
        again: The same computed again.
        num_rows: Ticks until a window holds nothing from before a gap.
        is_command_compared: Where the effort sent must be the one decided, shape (T,).
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
            _restart(log, k, controller, inputs)
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


def _restart(log: TickLog, k: int, controller: Controller, inputs: TickInputs) -> None:
    """Begin before tick k as the recorded controller did, or clear its context."""
    first = inputs.seen[0][0] if inputs.seen else inputs.state
    is_carried = k > 0 and bool((log.effort_before_nm[k] == log.effort_nm[k - 1]).all())
    if first.stamp_ns == 0 or log.is_break[k] or not is_carried:
        begin = first if first.stamp_ns == 0 else inputs.state
        controller.begin(begin, log.effort_before_nm[k])
    else:
        controller.clear_context()


def _recorded_inputs(log: TickLog) -> Iterator[TickInputs]:
    """Yield the inputs of each tick."""
    seen = log.seen
    columns = [log.shield[name].tolist() for name in Health._fields]
    payloads_kg = log.shield['payload_estimate_kg'].tolist()
    stamps_ns, places, nows_ns = seen.stamp_ns.tolist(), seen.begin.tolist(), log.now_ns.tolist()
    for k, (fresh, goal, on_time, error, reset) in enumerate(zip(*columns, strict=True)):
        rows = [
            (
                ArmState(stamps_ns[i], seen.q_rad[i], seen.qd_radps[i]),
                Reference(
                    seen.q_desired_rad[i], seen.qd_desired_radps[i], seen.qdd_desired_radps2[i]
                ),
            )
            for i in range(places[k], places[k + 1])
        ]
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
