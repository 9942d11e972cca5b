# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every certificate of a recorded run, checked by a second program.

The control code is not asked: arm, law and condition are those of `matrix_law.py`. What is checked
at each tick, by the name under which a violation is listed:

    finite          every number but the proposal, which may be anything
    mode            at least as grave as its inputs demand
    gain box        theta lies in the box
    gains           theta is the nearest admissible point to what was proposed; in every mode but
                    NOMINAL what counts as proposed are the nominal gains
    normal, constant, lyapunov_value, excess, excess_after_limits, distance, was_moved
                    the recorded value is the one computed here
    admissible      the condition holds, unless the tick records that no gains meet it
    is_feasible     no gains meet it where that is recorded
    wanted          the law's torque for these gains; gravity torque that fades in BLIND, nothing
                    in FAULT
    effort          the same, scaled to size and rate, as far as the box of both allows
    effort size, effort rate
                    within the limits of the joints
    effort before   it starts from the effort of the tick before; after a pause of the controller,
                    as far from it as the rate leads meanwhile
    estimate        within the effort limits; what it is made of is the replay's to check

What a tick does not record is bounded, not guessed: where ticks are missing from the log, a torque
that fades lies between zero and gravity's, and its rate within one period's. A hold that was begun
in such a gap cannot be recomputed at all: `unverifiable_ticks` names these ticks. Where an arm was
guided by hand the condition says nothing, as `guided_effort.py` has it; all else is checked.
Whether what was sent is the effort decided is checked by `sent_commands.py`.
"""

from collections.abc import Iterator
from typing import NamedTuple, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metactl_ros.check.guided_effort import fastest_radps, guided_effort
from metactl_ros.check.matrix_law import MatrixLaw, Motion, product, Sized
from metactl_ros.control.modes import Mode
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND, period_ns_of

if TYPE_CHECKING:
    from metactl_ros.bag.tick_log import TickLog
    from metactl_ros.control.settings import ControllerSettings
    from metactl_ros.dynamics.rigid_body import ArmModel

# Of the size of the terms of a sum: rounding is a hundred thousand times smaller.
RELATIVE = 1e-10
# By this much, in normalised units, a projection may miss the half-space, and a proposal may move
# without being called moved.
BEYOND, MOVED = 1e-9, 1e-6
# N m by which rounding may miss a limit: its own, whatever the controller allows itself.
SLACK_NM = 1e-9
# Two ticks closer than this, in periods, have none between them.
NEXT = 1.25


class Violation(NamedTuple):
    """A recorded value that is wrong, or an action that was not allowed: found exceeds allowed."""

    tick: int
    """Number in the log, from 0."""
    time_s: float
    """Since the first tick."""
    what: str
    found: float
    """How far it is off, in the unit of what is checked."""
    allowed: float


class _Run(NamedTuple):
    """What is known about each tick's predecessor, and when its mode began."""

    mode: NDArray[np.int64]
    is_next: NDArray[np.bool_]
    """By the clock no tick is missing before this one, shape (T,)."""
    is_known: NDArray[np.bool_]
    """The tick before is in the log, or the loop was reset."""
    passed_s: Array
    """From tick to tick, as far as the rate limit counts it; a period where unknown."""
    first: NDArray[np.int64]
    """The tick at which the mode was entered, as far as the log shows."""


def check_certificates(
    log: 'TickLog', arm: 'ArmModel', controller: 'ControllerSettings'
) -> list[Violation]:
    """Return everything that is wrong with the certificates of a run, in order of ticks."""
    broken = _num_not_finite(log)
    is_sound = broken == 0
    found = [('finite', broken, np.zeros_like(broken))]
    with np.errstate(all='ignore'):  # a number may be finite and absurd; it is reported, as NaN
        for what, off, allowed in _checks(log, arm, controller):
            off, allowed = _worst(off, allowed)
            found.append((what, np.where(is_sound, off, 0.0), np.where(is_sound, allowed, 0.0)))
    times = log.time_s
    violations = [
        Violation(int(tick), float(times[tick]), what, float(off[tick]), float(allowed[tick]))
        for what, off, allowed in found
        for tick in np.flatnonzero(~(off <= allowed))
    ]
    # Where the effort itself is wrong, it is not listed once more that it was not carried on.
    wrong = {v.tick + 1 for v in violations if v.what in ('finite', 'effort')}
    kept = [v for v in violations if v.what != 'effort before' or v.tick not in wrong]
    return sorted(kept, key=lambda violation: violation.tick)


def unverifiable_ticks(log: 'TickLog', controller: 'ControllerSettings') -> NDArray[np.bool_]:
    """Return the ticks of a hold whose begin is not in the log, shape (T,)."""
    return _unverifiable(_run_of(log, controller))


def _num_not_finite(log: 'TickLog') -> Array:
    arrays = (
        *(log.q_rad, log.qd_radps, log.q_desired_rad, log.qd_desired_radps),
        *(log.qdd_desired_radps2, log.effort_nm, log.effort_before_nm, log.wanted_nm, log.gains),
        np.stack([*log.shield.values()], axis=1),
    )
    return np.asarray(sum(np.sum(~np.isfinite(array), axis=1) for array in arrays), np.float64)


def _unverifiable(run: _Run) -> NDArray[np.bool_]:
    return np.asarray((run.mode == Mode.STOP) & ~run.is_known[run.first])


def _run_of(log: 'TickLog', controller: 'ControllerSettings') -> _Run:
    period_ns = period_ns_of(controller.law.rate_hz)
    shield = {name: np.nan_to_num(log.shield[name]) for name in ('mode', 'late_ms')}
    now_ns, is_reset = log.now_ns, log.is_restart
    mode = np.rint(shield['mode']).astype(np.int64)
    since_ns = np.diff(now_ns, prepend=now_ns[:1])
    due_ns = since_ns - np.diff(shield['late_ms'], prepend=shield['late_ms'][:1]) * 1e6
    is_next = (since_ns >= 0) & (due_ns < NEXT * period_ns)
    is_carried = np.zeros_like(is_reset)
    is_carried[1:] = (log.effort_before_nm[1:] == log.effort_nm[:-1]).all(axis=1)
    is_next[:1] = False
    is_known = is_next | is_carried | is_reset
    is_first = np.diff(mode, prepend=-1) != 0
    is_first |= is_reset | ~is_known
    goes_on = ~is_reset | (is_carried & (since_ns >= 0))  # a cleared context begins no new time
    passed_ns = np.where(goes_on & is_known, np.clip(since_ns, 0, period_ns), period_ns)
    return _Run(
        mode=mode,
        is_next=is_next & ~is_reset,
        is_known=is_known,
        passed_s=passed_ns / NANOSECONDS_PER_SECOND,
        first=np.maximum.accumulate(np.where(is_first, np.arange(len(mode)), 0)),
    )


def _checks(
    log: 'TickLog', arm: 'ArmModel', controller: 'ControllerSettings'
) -> Iterator[tuple[str, Array, Array | float]]:
    """Yield (what, how far off, how far allowed), one row per tick."""
    law, run, shield = MatrixLaw(arm, controller), _run_of(log, controller), log.shield
    guided = guided_effort(log, arm, controller, law.chain)
    motion, knows_goal = _motion(log, arm, law, run, is_guided=controller.guiding is not None)
    least = _least_mode(log, arm, fastest_radps(arm, controller), knows_goal)
    yield 'mode', np.maximum(least - shield['mode'], abs(shield['mode'] - run.mode)), 0.0
    low, high, nominal = _gain_ranges(controller, len(arm.joint_names))
    yield 'gain box', np.maximum(low - log.gains, log.gains - high), 0.0

    cannot = _unverifiable(run)
    condition = law.condition(motion)
    excess = condition.excess(log.gains)
    names = [name for name in shield if name.startswith('normal.')]
    normal = np.stack([shield[name] for name in names], axis=1)
    yield 'normal', *_apart(normal, condition.normal, cannot)
    yield 'constant', *_apart(shield['constant'], condition.constant, cannot)
    yield 'lyapunov_value', *_apart(shield['lyapunov_value'], condition.lyapunov_value, cannot)
    yield 'excess', *_apart(shield['excess'], excess, cannot)

    # In the units of the proposal: theta = middle + half a, so normal . (half a) <= room.
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    slope = condition.normal.value * half
    length = np.linalg.norm(slope, axis=1)
    room = -condition.excess(np.broadcast_to(middle, log.gains.shape)).value
    rounding = BEYOND * length + RELATIVE * excess.size
    is_empty = np.abs(slope).sum(axis=1) < -room
    says_empty = shield['is_feasible'] == 0.0
    claims = ~says_empty & ~cannot
    yield 'admissible', np.where(claims, excess.value, -np.inf), rounding
    yield 'is_feasible', np.where(says_empty & ~cannot & ~is_empty, 1.0, 0.0), 0.0
    rest = (nominal - middle) / half
    is_free = (run.mode == Mode.NOMINAL)[:, np.newaxis] & np.isfinite(log.action)
    proposal = np.where(is_free, log.action, rest)
    expected = np.where(says_empty[:, np.newaxis], rest, _nearest(proposal, slope, room))
    moved = np.linalg.norm(expected - proposal, axis=1)
    is_judged = ~cannot & (says_empty | ~is_empty)
    off = np.where(is_judged[:, np.newaxis], abs((log.gains - middle) / half - expected), 0.0)
    yield 'gains', off, MOVED
    recorded = shield['distance']
    yield 'distance', np.where(is_judged & ~says_empty, abs(recorded - moved), 0.0), MOVED
    yield 'was_moved', abs(shield['was_moved'] - ((recorded > MOVED) | (recorded < 0.0))), 0.0

    torque = law.effort(motion, log.gains)
    hold = law.holding(motion, log.gains)
    asked, hold = guided.in_place_of(torque, hold)
    yield from _effort_checks(log, arm, controller, law, run, asked, hold, cannot)
    if log.estimate_nm is not None:
        yield 'estimate', np.abs(log.estimate_nm), np.array(arm.limits.effort_nm)
    lacking = Sized(torque.value - log.effort_nm, torque.size + abs(log.effort_nm))
    after = excess + product('tj,tj->t', condition.Minv_w, lacking)
    yield 'excess_after_limits', *_apart(shield['excess_after_limits'], after, cannot)


def _gain_ranges(controller: 'ControllerSettings', num_joints: int) -> tuple[Array, Array, Array]:
    """Return the least, the largest and the nominal value of every gain, each of shape (m,)."""
    box, law = controller.gain_box, controller.law
    ends = [box.kd_per_s, box.lambda_per_s]
    nominal = [law.nominal_kd_per_s, law.nominal_lambda_per_s]
    if box.kp_per_s2 is not None:
        ends, nominal = [*ends, box.kp_per_s2], [*nominal, 0.0]
    ends += [entry.ends for entry in box.feed_forward]
    nominal += [float(entry.column == 'estimate') for entry in box.feed_forward]
    low, high = np.concatenate([np.broadcast_to(x, (num_joints, 2)) for x in ends]).T
    return low, high, np.hstack([np.broadcast_to(x, num_joints) for x in nominal])


def _motion(
    log: 'TickLog', arm: 'ArmModel', law: MatrixLaw, run: _Run, *, is_guided: bool
) -> tuple[Motion, NDArray[np.bool_]]:
    """Return what the law was asked for, and whether the reference was one to follow.

    An impossible reference is replaced by a hold; STOP holds the posture in which it was entered;
    an arm that is guided by hand is where it should be, and moves as it should.
    """
    weakest = np.linalg.eigvalsh(law.chain.mass_matrix(np.zeros((1, log.q_rad.shape[1]))))[0, 0]
    limits = arm.limits
    most = [limits.velocity_radps, np.array(limits.effort_nm) / weakest]
    goal = [log.q_desired_rad, log.qd_desired_radps, log.qdd_desired_radps2]
    knows = _is_reachable(goal[0], arm)
    knows &= np.all(np.abs(np.hstack(goal[1:])) <= np.hstack(most), axis=1)
    if is_guided:
        goal = [log.q_rad, log.qd_radps, np.zeros_like(log.q_rad)]
    follows = ((knows | is_guided) & (run.mode != Mode.STOP))[:, np.newaxis]
    stops = (run.mode == Mode.STOP)[:, np.newaxis]
    stay = np.where(stops, log.q_rad[run.first], log.q_rad)
    held = [stay, np.zeros_like(stay), np.zeros_like(stay)]
    q, qd, qdd = (np.where(follows, *pair) for pair in zip(goal, held, strict=True))
    # Only NOMINAL counts on what is estimated.
    is_nominal, estimate = run.mode == Mode.NOMINAL, log.estimate_nm
    if estimate is not None:
        estimate = np.where(is_nominal[:, np.newaxis], estimate, 0.0)
    motion = Motion(log.q_rad, log.qd_radps, q, qd, qdd, estimate)
    if log.estimated_state is not None:
        here_q, here_qd, payload_kg = log.estimated_state
        motion = motion._replace(
            q_rad=np.where(is_nominal[:, np.newaxis], here_q, log.q_rad),
            qd_radps=np.where(is_nominal[:, np.newaxis], here_qd, log.qd_radps),
            payload_kg=np.where(is_nominal, payload_kg, 0.0),
        )
    return motion, np.asarray(knows)


def _is_reachable(q_rad: Array, arm: 'ArmModel') -> NDArray[np.bool_]:
    """Return whether all joints are within their range, shape (T,)."""
    is_within = (arm.limits.lower_rad <= q_rad) & (q_rad <= arm.limits.upper_rad)
    return np.asarray(is_within.all(axis=1))


def _least_mode(
    log: 'TickLog', arm: 'ArmModel', fastest: Array, knows_goal: NDArray[np.bool_]
) -> Array:
    """Return the mildest mode that the inputs of each tick allow, shape (T,)."""
    shield = log.shield
    is_slow = (np.abs(log.qd_radps) <= fastest).all(axis=1)
    is_within = _is_reachable(log.q_rad, arm) & is_slow
    is_answered = np.isfinite(log.action).all(axis=1) & (shield['policy_is_on_time'] > 0.0)
    demands = [
        (is_answered, Mode.WARMUP),
        (knows_goal & is_within & (shield['reference_is_valid'] > 0.0), Mode.STOP),
        (shield['state_is_fresh'] > 0.0, Mode.BLIND),
        (shield['error'] == 0.0, Mode.FAULT),
    ]
    least = [np.where(is_good, 0.0, float(mode)) for is_good, mode in demands]
    return np.asarray(np.max(least, axis=0))


def _effort_checks(
    log: 'TickLog',
    arm: 'ArmModel',
    controller: 'ControllerSettings',
    law: MatrixLaw,
    run: _Run,
    torque: Sized,
    hold_nm: Array,
    cannot: NDArray[np.bool_],
) -> Iterator[tuple[str, Array, Array | float]]:
    before, sent = log.effort_before_nm, log.effort_nm
    largest = np.array(arm.limits.effort_nm)
    reach = run.passed_s[:, np.newaxis] * np.array(arm.limits.effort_rate_nmps)
    yield 'effort size', np.abs(sent), largest + SLACK_NM
    yield 'effort rate', np.abs(sent - before), reach + SLACK_NM
    is_off = run.is_next[:, np.newaxis]
    carried = np.vstack([sent[:1], sent[:-1]])
    paused_s = np.diff(log.now_ns, prepend=log.now_ns[:1]) / NANOSECONDS_PER_SECOND
    paused_s = np.where(log.is_resumed, paused_s, 0.0)[:, np.newaxis]
    led = paused_s * np.array(arm.limits.effort_rate_nmps)
    yield 'effort before', np.where(is_off, np.abs(before - carried), 0.0), led

    gravity, ramp_s = law.chain.gravity_nm(log.q_rad), controller.modes.blind_ramp_s
    blind_s = (log.now_ns - log.now_ns[run.first]) / NANOSECONDS_PER_SECOND
    share = np.clip(1.0 - blind_s / ramp_s, 0.0, 1.0) if ramp_s else np.zeros_like(blind_s)
    is_sure = run.is_known[run.first]
    least, most = np.where(is_sure, share, 0.0), np.where(is_sure, share, float(ramp_s > 0.0))
    ends = [gravity * least[:, np.newaxis], gravity * most[:, np.newaxis]]
    is_blind, is_fault = (run.mode[:, np.newaxis] == mode for mode in (Mode.BLIND, Mode.FAULT))

    def wanted(fading: Array) -> Array:
        return np.where(is_blind, fading, np.where(is_fault, 0.0, torque.value))

    floor, ceiling = np.maximum(before - reach, -largest), np.minimum(before + reach, largest)
    is_law = ~(is_blind | is_fault)

    def cut(asked: Array) -> Array:
        scaled = _scaled(hold_nm, asked, floor, ceiling)
        return np.where(is_law, scaled, np.clip(asked, floor, ceiling))

    skip, rounding = cannot[:, np.newaxis], _rounding_nm(torque, gravity)
    low, high = wanted(np.minimum(*ends)), wanted(np.maximum(*ends))
    off = np.maximum(low - log.wanted_nm, log.wanted_nm - high)
    yield 'wanted', np.where(skip, 0.0, off), rounding
    low, high = cut(np.where(skip, log.wanted_nm, low)), cut(np.where(skip, log.wanted_nm, high))
    is_timed = run.is_known[:, np.newaxis]
    low = np.where(is_timed, low, np.minimum(low, before))
    high = np.where(is_timed, high, np.maximum(high, before))
    off = np.where(skip & is_law, 0.0, np.maximum(low - sent, sent - high))
    yield 'effort', off, rounding


def _rounding_nm(torque: Sized, gravity_nm: Array) -> Array:
    """Return how far two models may be apart by rounding, N m; all have the shape (T, n).

    It is a share of the moment, not of its part along the axis of the joint: about the vertical
    gravity gives nothing by one model and 1e-15 N m by another.
    """
    moment_nm = np.abs(gravity_nm).max(axis=1, keepdims=True)
    return np.asarray(RELATIVE * (torque.size + moment_nm))


def _scaled(hold: Array, asked: Array, floor: Array, ceiling: Array) -> Array:
    """Return the efforts farthest on the way from h to those asked for that the box holds, (T, n).

    Every share at which a joint meets an end of its interval is tried, from the largest down.
    Where none is within the box, the way begins at the point of the box next to h.
    """
    way = asked - hold
    found = np.full(asked.shape, np.nan)
    for begin in (hold, np.clip(hold, floor, ceiling)):
        with np.errstate(divide='ignore', invalid='ignore'):
            meets = np.hstack([(floor - begin) / way, (ceiling - begin) / way])
        shares = np.hstack([np.nan_to_num(meets, nan=0.0), np.zeros((len(way), 1))])
        shares = -np.sort(-np.where((shares >= 0.0) & (shares <= 1.0), shares, 0.0), axis=1)
        shares = np.hstack([np.ones((len(way), 1)), shares])
        for share in shares.T[..., np.newaxis]:
            point = begin + share * way
            fits = ((point >= floor - SLACK_NM) & (point <= ceiling + SLACK_NM)).all(axis=1)
            is_new = fits & np.isnan(found).all(axis=1)
            found[is_new] = np.clip(point, floor, ceiling)[is_new]
    return found


def _nearest(proposal: Array, slope: Array, room: Array) -> Array:
    """Return the points of {|a_i| <= 1, slope . a <= room} nearest to proposals, by bisection.

    They are clip(p - mu slope) for the least mu >= 0 that meets the condition; shapes (T, m).
    """
    inside = np.clip(proposal, -1.0, 1.0)
    is_beyond = np.einsum('tm,tm->t', slope, inside) > room
    p, n, most = proposal[is_beyond], slope[is_beyond], room[is_beyond]
    length = np.linalg.norm(n, axis=1)
    n, most = n / length[:, np.newaxis], most / length
    steps = np.where(n == 0.0, 0.0, (np.abs(p) + 1.0) / np.where(n == 0.0, 1.0, np.abs(n)))
    low, high = np.zeros(len(p)), steps.max(axis=1, initial=0.0)
    for _ in range(200):
        middle = 0.5 * (low + high)
        point = np.clip(p - middle[:, np.newaxis] * n, -1.0, 1.0)
        is_above = np.einsum('tm,tm->t', n, point) > most
        low, high = np.where(is_above, middle, low), np.where(is_above, high, middle)
    inside[is_beyond] = np.clip(p - high[:, np.newaxis] * n, -1.0, 1.0)
    return inside


def _apart(recorded: Array, again: Sized, cannot: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return how far a recorded value is off, and how far rounding may put it."""
    skip = cannot if recorded.ndim == 1 else cannot[:, np.newaxis]
    return np.where(skip, 0.0, np.abs(recorded - again.value)), RELATIVE * again.size


def _worst(off: Array, allowed: Array | float) -> tuple[Array, Array]:
    """Return, per tick, the entry that is farthest beyond what it may be, shapes (T,)."""
    bound = np.broadcast_to(np.asarray(allowed), off.shape)
    if off.ndim == 1:
        return off, bound
    place = np.argmax(np.where(np.isnan(off), np.inf, off - bound), axis=1)
    rows = np.arange(len(off))
    return off[rows, place], bound[rows, place]
