# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""An arm that is guided by hand stays, yields, keeps to its speed and never moves by itself."""

from dataclasses import replace

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.guided_arms import ARMS, GuidedArm

from metactl_ros.baselines import load_classical
from metactl_ros.control.guiding import GuidingLaw
from metactl_ros.control.modes import Cause, Health, Mode
from metactl_ros.dynamics.friction import friction_torque
from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import Hold
from metactl_ros.signals import ArmState

PUSH_S = 1.5
RNG = np.random.default_rng(18)
CACHE = {}


def arm_of(name):
    if name != 'two_link':
        pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    if name not in CACHE:
        CACHE[name] = GuidedArm(name)
    return CACHE[name]


@pytest.fixture(params=ARMS)
def arm(request):
    return arm_of(request.param)


def push_of(arm, share, joint, lasts_s=PUSH_S):
    """Return a push of a share of a joint's effort limit that lasts for a while."""
    push_nm = np.zeros(len(arm.effort_nm))
    push_nm[joint] = share * arm.effort_nm[joint]
    return lambda t_s: push_nm * (t_s < lasts_s)


def test_released_from_rest_with_the_right_payload_it_stays(arm):
    for payload_kg in (0.0, arm.payload_kg):
        q = RNG.uniform(arm.lower_rad, arm.upper_rad)
        run = arm.run(q, 100, payload_kg)
        assert np.abs(run.q_rad - q).max() < 1e-6
        assert set(run.modes) == {Mode.NOMINAL}


def test_a_push_moves_it_and_without_it_comes_to_rest(arm):
    joint = 1
    run = arm.run(arm.middle_rad, 500, push_nm=push_of(arm, 0.08, joint))
    pushed = round(PUSH_S * 100)
    assert run.q_rad[pushed, joint] > arm.middle_rad[joint] + 0.1
    assert np.abs(run.qd_radps[-1]).max() < 0.01
    assert np.abs(run.q_rad[-1] - run.q_rad[-100]).max() < 0.02
    assert set(run.modes) == {Mode.NOMINAL}


def test_a_constant_push_does_not_exceed_the_speed_limit(arm):
    """Without damping that grows each of them would: by then the push alone leads beyond it."""
    joint = 0
    push = push_of(arm, 0.1, joint)
    run = arm.run(arm.middle_rad, 150, push_nm=push)
    assert 0.3 < np.abs(run.qd_radps).max() < np.min(arm.guiding.speed_limit_radps)
    assert set(run.modes) == {Mode.NOMINAL}
    lax = replace(arm.guiding, damping_most_per_s=arm.guiding.damping_per_s)
    other = GuidedArm.__new__(GuidedArm)
    other.__dict__ = arm.__dict__ | {'controller': replace(arm.controller, guiding=lax)}
    assert np.abs(other.run(arm.middle_rad, 150, push_nm=push).qd_radps).max() > 1.0


def test_a_speed_above_the_limit_ends_in_stop(arm):
    loop, q = arm.loop(), arm.middle_rad
    zero, fast = np.zeros_like(q), np.zeros_like(q)
    fast[-1] = 1.01 * np.min(arm.guiding.speed_limit_radps)
    loop.reset(ArmState(0, q, zero))
    modes = []
    for k, qd in enumerate((zero, fast)):
        state, reference = ArmState(k * 10**7, q, qd), Hold(q).at(0.0)
        loop.observe(state, reference, 0.0)
        step = loop.actuate(loop.nominal_action, state, reference, state.stamp_ns)
        modes.append((int(step.modes), int(step.causes)))
    assert modes == [(Mode.NOMINAL, Cause.NONE), (Mode.STOP, Cause.OUTSIDE_LIMITS)]


def test_a_wall_holds_a_steady_push_before_the_limit(arm):
    joint = len(arm.effort_nm) - 1
    share = 0.6 * arm.guiding.wall_effort_share
    q = arm.middle_rad.copy()
    limit = arm.arm.limits.upper_rad[joint]
    width = np.broadcast_to(arm.guiding.wall_width_rad, q.shape)[joint]
    q[joint] = limit - 1.1 * width
    run = arm.run(q, 400, push_nm=push_of(arm, share, joint, lasts_s=10.0))
    assert run.q_rad[:, joint].max() < limit
    assert run.q_rad[-1, joint] == pytest.approx(limit - 0.4 * width, abs=0.2 * width)
    assert set(run.modes) == {Mode.NOMINAL}


def test_with_a_payload_wrong_by_all_it_is_rated_for_it_sinks_slowly(arm):
    """At a bounded speed: damping limits it, or else STOP does, which no joint passes by far."""
    for payload_kg, stated_kg in ((arm.payload_kg, 0.0), (0.0, arm.payload_kg)):
        q = RNG.uniform(arm.lower_rad, arm.upper_rad)
        run = arm.run(q, 200, payload_kg, stated_kg)
        assert np.abs(run.qd_radps).max() < 1.25 * np.max(arm.guiding.speed_limit_radps)
        assert Mode.FAULT not in run.modes
        assert (run.q_rad < arm.arm.limits.upper_rad).all()
        assert (run.q_rad > arm.arm.limits.lower_rad).all()


shares = st.floats(0.001, 0.999)  # at the very ends rounding is in or out of a wall


@pytest.mark.parametrize('name', ARMS)
@hypothesis_settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_compensates_friction_never_starts_nor_feeds_a_motion(name, data):
    """Over all postures and speeds, qd . (tau - g - F(qd)) <= 0 for the friction that is stated.

    And with any other velocity than the true one, late or noisy, friction is never outweighed.
    """
    arm = arm_of(name)
    n = len(arm.effort_nm)
    q = arm.lower_rad + np.array(data.draw(st.tuples(*[shares] * n))) * (
        arm.upper_rad - arm.lower_rad
    )
    speeds = st.tuples(*[st.floats(-2.0, 2.0, allow_subnormal=False)] * n)
    qd, measured = np.array(data.draw(speeds)), np.array(data.draw(speeds))
    law = GuidingLaw(arm.guiding, arm.arm, 0.01)
    loaded, bare = (arm.arm.body(kg).at(q, qd) for kg in (arm.payload_kg, 0.0))
    torque = law.torque(bare, loaded.gravity, q, qd)
    friction = friction_torque(arm.settings.plant.friction, qd, np.zeros(n))
    assert qd @ (torque - loaded.gravity - friction) <= 1e-12
    at_rest = law.torque(bare, loaded.gravity, q, np.zeros(n))
    np.testing.assert_array_equal(at_rest, loaded.gravity)
    dry = arm.guiding.friction_share * np.broadcast_to(arm.guiding.coulomb_nm, (n,))
    assert (np.abs(law.friction(measured)) <= dry * (1.0 + 1e-12)).all()
    assert (law.friction(measured)[np.abs(measured) <= arm.guiding.friction_dead_radps] == 0).all()


def test_friction_is_compensated_at_speed():
    arm = arm_of('two_link')
    law = GuidingLaw(arm.guiding, arm.arm, 0.01)
    full = arm.guiding.friction_full_radps
    np.testing.assert_allclose(law.friction(np.array([full, -3.0])), [1.0, -1.0])


def test_no_reference_is_followed_and_modes_are_those_of_every_loop():
    """A far reference changes no bit; a hold, blindness and an error do what they always do."""
    arm, q = arm_of('two_link'), np.array([0.3, -0.4])
    efforts = {}
    for goal in (q, q + 1.0):
        loop = arm.loop()
        loop.reset(ArmState(0, q, np.zeros(2)))
        state, reference = ArmState(0, q, np.array([0.2, -0.3])), Hold(goal).at(0.0)
        loop.observe(state, reference, 0.75)
        step = loop.actuate(loop.nominal_action, state, reference, 0)
        efforts[goal[0]] = step.effort_nm.tolist()
        assert step.decision.half_space.value == 0.0
        modes = []
        for k, health in enumerate(
            (
                Health(reference_is_valid=False),
                Health(state_is_fresh=False),
                Health(error=Cause.INTERNAL_ERROR),
            ),
            start=1,
        ):
            state = ArmState(k * 10**7, q, np.zeros(2))
            loop.observe(state, reference, 0.75)
            step = loop.actuate(loop.nominal_action, state, reference, state.stamp_ns, health)
            modes.append(step.modes)
        assert modes == [Mode.STOP, Mode.BLIND, Mode.FAULT]
    assert len({tuple(effort) for effort in efforts.values()}) == 1


def test_it_begins_from_the_effort_that_acts_and_changes_no_faster_than_the_limits():
    arm, q = arm_of('two_link'), np.array([0.3, -0.4])
    loop = arm.loop()
    begin = loop.reset(ArmState(0, q, np.zeros(2)), np.array([-100.0, 40.0]))
    for k in range(20):
        state, reference = ArmState(k * 10**7, q, np.zeros(2)), Hold(q).at(0.0)
        loop.observe(state, reference, 1.5)
        effort = loop.actuate(loop.nominal_action, state, reference, state.stamp_ns).effort_nm
        assert (np.abs(effort - begin) <= np.array([40.0, 15.0]) + 1e-9).all()
        begin = effort
    np.testing.assert_allclose(effort, arm.arm.body(1.5).at(q, np.zeros(2)).gravity)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'friction_share': 1.0}, 'friction_share: expected below 1, found 1'),
        ({'friction_full_radps': 0.05}, 'friction_full_radps: expected above friction_dead_radps'),
        ({'damping_most_per_s': 0.5}, 'damping_most_per_s: expected at least damping_per_s = 1'),
        ({'damping_most_per_s': 51.0}, 'damping_most_per_s: expected at most 50 for joint1'),
        ({'speed_limit_radps': 9.0}, 'speed_limit_radps: expected at most 8 for joint1, found 9'),
        ({'speed_limit_radps': (1.0,) * 3}, r'expected 2 entries, one per joint, found 3'),
        ({'wall_width_rad': 1.4}, 'wall_width_rad: expected at most 1.3 for joint2, found 1.4'),
        ({'wall_width_rad': 0.01}, 'wall_effort_share: natural frequency .* expected at most 50'),
        ({'wall_effort_share': 1.0}, 'wall_effort_share: expected below 1'),
        ({'coulomb_nm': -1.0}, 'coulomb_nm: expected finite values at least 0'),
        ({'damping_per_s': 0.0}, 'damping_per_s: expected finite values above 0'),
    ],
)
def test_what_would_be_unsafe_is_refused_with_its_number(changes, message):
    arm = arm_of('two_link')
    with pytest.raises(ConfigError, match=message):
        GuidingLaw(replace(arm.guiding, **changes), arm.arm, 0.01)


def test_an_estimator_is_refused_beside_it():
    arm = arm_of('two_link')
    integral = load_classical('ct_integral', arm.settings.controller, None, 0.0).controller
    with pytest.raises(ConfigError, match='guiding: nothing is estimated'):
        replace(integral, guiding=arm.guiding)
