# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from metactl_ros.control.guard import Guard
from metactl_ros.control.law import TrackingState
from metactl_ros.control.modes import Cause
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_settings
from metactl_ros.signals import GAP_PERIODS

SHIPPED = load_settings()
SETTINGS, LIMITS = SHIPPED.controller.guard, SHIPPED.arm.limits
MODEL = SHIPPED.arm.body()
PERIOD_NS, DT_S = 10_000_000, 0.01
STILL = np.zeros(2)


class Watched:
    """An arm on a sinusoid whose sensors, and whose effort, a test may spoil."""

    def __init__(self, lead=(), speed=1.0):
        self.guard = Guard(SETTINGS, LIMITS, PERIOD_NS)
        self.lead, self.speed, self.k = lead, speed, 0
        self.effort = None

    def truth(self, k):
        """Return q, qd, qdd on a circle of the given largest speed."""
        angle = 2.0 * DT_S * (k - 50) + np.array([0.0, np.pi])  # fastest at k = 50
        half = 0.5 * self.speed
        return half * np.sin(angle), self.speed * np.cos(angle), -2.0 * self.speed * np.sin(angle)

    def step(self, spoil=lambda q, qd: (q, qd), share=1.0, **flags):
        """See one state, then send the effort that the model needs; return the error."""
        q, qd, qdd = (np.broadcast_to(x, (*self.lead, 2)) for x in self.truth(self.k))
        goal = q
        seen_q, seen_qd = spoil(q, qd)
        if self.effort is None:
            self.send(q, qd, qdd, share)
        at = TrackingState(seen_q, seen_qd, goal, qd, qdd)
        given = {'state_is_valid': True, 'follows': True, 'acts': True} | flags
        given = {name: np.broadcast_to(value, self.lead) for name, value in given.items()}
        self.guard.see(self.k * PERIOD_NS, at, **given)
        self.send(q, qd, qdd, share)
        self.k += 1
        return self.guard.error

    def send(self, q, qd, qdd, share):
        posture = MODEL.at(q, qd)
        forward = self.truth(self.k + 1)[1] - self.truth(self.k)[1]
        self.effort = share * (posture.apply(forward) / DT_S + posture.bias)
        self.guard.expect(posture, self.effort)

    def steps(self, count, *args, **kwargs):
        return [self.step(*args, **kwargs) for _ in range(count)]

    def first(self, *args, most=100, **kwargs):
        """Return the cause of the first alarm, its joint, and after how many states it came."""
        for number in range(1, most + 1):
            if error := self.step(*args, **kwargs):
                return Cause(int(error)), int(self.guard.joint), number
        return Cause.NONE, -1, most


def warm(**kwargs):
    watched = Watched(**kwargs)
    assert not np.any(watched.steps(50))
    return watched


@pytest.mark.parametrize('speed', [0.0, 0.01, 1.0, 3.0, 5.0])
def test_a_sound_arm_raises_no_alarm(speed):
    watched = Watched(speed=speed)
    assert not any(watched.steps(1000))
    assert watched.guard.is_calm


@pytest.mark.parametrize('joint', [0, 1])
@pytest.mark.parametrize(
    ('spoil', 'most'),
    [
        (lambda v: 0.0 * v, 12),
        (lambda v: -v, 8),
        (lambda v: np.degrees(v), 6),
        (lambda v: 0.0 * v + 3.0, 8),
    ],
    ids=['zero', 'wrong sign', 'deg/s', 'stuck at 3 rad/s'],
)
def test_a_velocity_that_contradicts_the_positions_is_noticed_within_ticks(joint, spoil, most):
    watched = warm(speed=1.5)
    only = np.eye(2)[joint].astype(bool)
    cause, found, number = watched.first(lambda q, qd: (q, np.where(only, spoil(qd), qd)))
    assert cause in (Cause.POSITION_VELOCITY_MISMATCH, Cause.OVERSPEED)
    assert found == joint
    assert number <= most


@pytest.mark.parametrize('speed', [3.0, 4.2, 5.5, 7.5])
@pytest.mark.parametrize('factor', [0.0, -1.0, 1.0 / (2.0 * np.pi)])
def test_a_wrong_velocity_is_noticed_however_fast_the_joint_is(speed, factor):
    watched = Watched(speed=speed)
    watched.steps(50)
    cause, _, number = watched.first(lambda q, qd: (q, factor * qd))
    assert cause == Cause.POSITION_VELOCITY_MISMATCH
    assert number <= 8


def test_a_joint_is_too_fast_by_its_positions_even_if_its_velocity_is_not():
    watched = Watched(speed=0.0)
    for k in range(4):
        error = watched.step(
            lambda q, qd, k=k: (q + np.array([0.0, 0.101 * k]), np.array([0.0, 7.9]))
        )
    assert Cause(int(error)) == Cause.OVERSPEED


@pytest.mark.parametrize('value', [5.0, -30.0, 7.9])
def test_a_single_spike_of_a_velocity_is_no_alarm(value):
    watched = warm()
    for _ in range(20):
        assert not watched.step(lambda q, qd: (q, np.array([value, qd[1]])))
        assert not any(watched.steps(25))


def test_a_single_leap_of_a_position_is_no_alarm():
    watched = warm()
    assert not any(watched.steps(50, lambda q, qd: (q + np.array([0.15, 0.0]), qd)))


@pytest.mark.parametrize(('noise', 'bits'), [(0.02, 0), (0.1, 0), (0.0, 12), (0.0, 10)])
def test_noise_and_coarse_encoders_are_no_alarm(noise, bits):
    rng, watched, before = np.random.default_rng(3), Watched(), [None]

    def spoil(q, qd):
        if bits:
            quantum = 2.0 * np.pi / 2**bits
            q = np.round(q / quantum) * quantum
            last = q if before[0] is None else before[0]
            before[0], qd = q, (q - last) / DT_S
        return q, qd + noise * rng.standard_normal(2)

    assert not any(watched.steps(6000, spoil))


def test_an_encoder_frozen_in_motion_contradicts_its_velocity():
    watched = warm(speed=1.5)
    q, qd, _ = watched.truth(watched.k)
    cause, _, number = watched.first(lambda *_: (q, qd))
    assert cause == Cause.POSITION_VELOCITY_MISMATCH
    assert number <= 12


def test_a_joint_frozen_at_rest_is_noticed_once_its_reference_has_moved():
    watched = warm()
    still, _, _ = watched.truth(watched.k)
    cause, joint, number = watched.first(
        lambda q, qd: (np.array([q[0], still[1]]), np.array([qd[0], 0.0]))
    )
    assert (cause, joint) == (Cause.FROZEN_STATE, 1)
    assert SETTINGS.frozen_s / DT_S <= number <= 40


@pytest.mark.parametrize('speed', [1.1e-6, 0.005, -0.2])
def test_a_joint_that_freezes_while_it_is_held_is_noticed_by_a_velocity_that_stays(speed):
    watched = warm(speed=0.0)
    q = np.array([0.3, 0.2])
    cause, joint, number = watched.first(lambda *_: (q, np.array([0.0, speed])))
    assert (cause, joint) == (Cause.FROZEN_STATE, 1)
    assert number * DT_S == pytest.approx(SETTINGS.frozen_s, abs=1.1 * DT_S)


def test_readings_may_be_the_same_for_a_while_and_for_ever_within_the_last_digit():
    watched = warm(speed=0.0)
    held = round(SETTINGS.frozen_s / DT_S)
    for _ in range(20):
        assert not any(watched.steps(held, lambda q, qd: (q, qd + 1e-3)))
        watched.step()
    assert not any(watched.steps(500, lambda q, qd: (q, qd + 1e-6)))


def test_a_joint_that_stands_still_with_its_reference_is_not_frozen():
    watched = Watched(speed=0.0)
    assert not any(watched.steps(500))


def test_readings_may_stay_the_same_while_nobody_asks_the_arm_to_move():
    watched = warm(speed=0.5)
    q, _, _ = watched.truth(watched.k)
    assert not any(watched.steps(30, lambda *_: (q, STILL), follows=False))


def test_an_arm_that_does_not_do_as_its_effort_says_is_noticed():
    """The arm moves as ever, though it was sent the opposite."""
    watched = warm(speed=1.0)
    honest = watched.send
    watched.send = lambda q, qd, qdd, _: honest(q, qd, qdd, -1.0)
    cause, _, _ = watched.first()
    assert cause == Cause.EFFORT_MOTION_MISMATCH


def test_a_payload_and_friction_are_no_contradiction():
    watched = warm()
    honest = watched.send

    def send(q, qd, qdd, share):
        honest(q, qd, qdd, share)
        watched.guard.expect(MODEL.at(q, qd), watched.effort + np.array([45.0, -18.0]))

    watched.send = send
    assert not any(watched.steps(1000))


def test_too_far_too_fast_or_beyond_its_limits_for_three_states_is_an_alarm():
    far = np.array([SETTINGS.tracking_error_rad + 0.01, 0.0])
    cases = [
        (lambda q, qd: (q + far, qd), Cause.TRACKING_ERROR, 0),
        (lambda q, qd: (q, np.array([qd[0], 8.81])), Cause.OVERSPEED, 1),
        (lambda q, qd: (np.array([q[0], -2.71]), qd), Cause.BEYOND_LIMITS, 1),
    ]
    for spoil, cause, joint in cases:
        watched = warm(speed=0.0)
        flags = {'follows': cause == Cause.TRACKING_ERROR}
        found = [watched.step(spoil, **flags) for _ in range(3)]
        assert [int(error) for error in found] == [0, 0, cause]
        assert watched.guard.joint == joint
        if cause == Cause.TRACKING_ERROR:
            assert not watched.step(), 'it is told of the last states only'


def test_an_error_counts_only_while_the_reference_is_followed():
    watched = warm()
    assert not any(watched.steps(20, lambda q, qd: (q + 0.7, qd), follows=False))


def test_full_effort_without_motion_is_told_apart():
    watched = warm(speed=0.0)
    held = SimpleNamespace(bias=np.array([140.0, 0.0]), apply=MODEL.at(STILL, STILL).apply)
    watched.send = lambda *_: watched.guard.expect(held, np.array([148.0, 0.0]))
    assert [watched.step() or watched.guard.can_move for _ in range(20)] == [True] * 20
    watched.step()
    assert not watched.guard.can_move
    assert not watched.guard.error
    assert not watched.guard.is_calm


def test_what_an_alarm_was_about_is_forgotten_soon_after():
    watched = warm(speed=1.5)
    watched.steps(200, lambda q, qd: (q, -qd))
    assert watched.guard.error
    watched.steps(8)
    assert not watched.guard.error


def test_where_a_robot_may_brake_the_model_explains_nothing():
    """In FAULT no effort is sent, and the brake bears the weight of the arm."""
    watched = warm(speed=0.0)
    honest = watched.send
    watched.send = lambda q, qd, qdd, _: honest(q, qd, qdd, 0.0)
    cause, _, _ = watched.first(most=300)
    assert cause == Cause.EFFORT_MOTION_MISMATCH
    watched.step(acts=False)
    assert not watched.guard.error
    assert not any(watched.steps(300, acts=False))


@pytest.mark.parametrize(
    ('spoil', 'cause'),
    [
        (lambda q, qd: (q + 0.7, qd), Cause.TRACKING_ERROR),
        (lambda q, qd: (q, qd + 9.0), Cause.OVERSPEED),
        (lambda q, qd: (q - 3.2, qd), Cause.BEYOND_LIMITS),
    ],
)
def test_states_that_come_seldom_are_held_to_all_limits(spoil, cause):
    watched = warm(speed=0.0)
    found = []
    for _ in range(3):
        watched.k += 2 * GAP_PERIODS
        found.append(int(watched.step(spoil, follows=cause == Cause.TRACKING_ERROR)))
    assert found == [0, 0, cause]


@pytest.mark.parametrize('per_tick', [1, 10])
def test_limits_are_held_for_a_time_however_often_states_come(per_tick):
    guard = Guard(SETTINGS, LIMITS, PERIOD_NS)
    posture = MODEL.at(STILL, STILL)
    guard.expect(posture, posture.bias)
    yes, no = np.array(True), np.array(False)
    times_ns = []
    for k in range(10 * per_tick):
        at = TrackingState(STILL - 3.2, STILL, STILL, STILL, STILL)
        guard.see(k * PERIOD_NS // per_tick, at, state_is_valid=yes, follows=no, acts=yes)
        times_ns += [k * PERIOD_NS // per_tick] if guard.error == Cause.BEYOND_LIMITS else []
    assert times_ns[0] == round(SETTINGS.persistence_s * 1e9)


def test_after_a_gap_all_evidence_is_gathered_anew():
    watched = warm(speed=1.5)
    watched.steps(3, lambda q, qd: (q, 0.0 * qd))
    watched.k += GAP_PERIODS
    watched.step(lambda q, qd: (q, 0.0 * qd))
    assert not any(watched.steps(3, lambda q, qd: (q, 0.0 * qd)))


def test_a_state_of_the_same_instant_adds_nothing():
    watched = warm(speed=1.5)
    for _ in range(50):
        watched.k -= 1
        assert not watched.step(lambda q, qd: (q, -qd))


def test_of_an_arm_that_is_not_seen_nothing_is_concluded():
    watched = warm(lead=(3,), speed=1.5)
    state_is_valid = np.array([True, False, True])
    for _ in range(20):
        error = watched.step(lambda q, qd: (q, -qd), state_is_valid=state_is_valid)
    assert (error > 0).tolist() == state_is_valid.tolist()


def test_a_batch_is_judged_as_its_arms_are():
    rng = np.random.default_rng(8)
    noise = np.cumsum(rng.normal(0.0, 0.05, (300, 40, 2)), axis=0)
    batch = Watched(lead=(40,))
    told = []
    for k in range(300):
        batch.step(lambda q, qd, k=k: (q, qd + noise[k]))
        told.append(np.stack([batch.guard.error, batch.guard.joint], axis=-1))
    assert (np.array(told)[..., 0] > 0).any()
    for arm in range(40):
        single = Watched()
        for k in range(300):
            single.step(lambda q, qd, more=noise[k, arm]: (q, qd + more))
            assert (single.guard.error, single.guard.joint) == tuple(told[k][arm])


@pytest.mark.parametrize('name', ['tracking_error_rad', 'mismatch_rad', 'frozen_s'])
def test_a_threshold_of_zero_is_refused(name):
    with pytest.raises(ConfigError, match=f'GuardSettings.{name}: expected .*above 0'):
        replace(SETTINGS, **{name: 0})
