# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong units, wrong clocks, brakes and jams of the simulated robot, without ROS."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.episodes import start

from metactl_ros.dynamics.friction import friction_torque
from metactl_ros.ros.simulated_robot import brake_damping, brake_effort, FreeRunningRobot
from metactl_ros.signals import ArmState
from metactl_ros.sim.fault_line import FaultLine, StateMessage
from metactl_ros.sim.faults import Fault, FaultSchedule, KINDS, perturbation_of, with_stops

MS = 1_000_000
PERIOD_NS = 10 * MS
NAMES = ('joint1', 'joint2')
ORIGIN_NS = 10**9


def on(kind, amount=None, joint=None):
    return Fault(kind=kind, at_s=0.0, amount=amount, joint=joint)


def message(k, effort_nm=(1.0, 2.0)):
    state = ArmState(k * PERIOD_NS, np.array([0.1 * k, 1.0]), np.array([0.5, -0.01 * k]))
    return StateMessage(ORIGIN_NS + k * PERIOD_NS, NAMES, state, np.array(effort_nm))


def stamps(fault, begin, end, steps):
    """Return the stamps of a line whose fault is on for some of its states."""
    line = FaultLine(PERIOD_NS, 0)
    return [
        line.apply(message(k), (fault,) if begin <= k < end else ())[0].stamp_ns
        for k in range(steps)
    ]


@pytest.mark.parametrize('joint', [None, 0, 1])
@pytest.mark.parametrize(
    ('kind', 'amount', 'factor'),
    [('velocity_zero', None, 0.0), ('velocity_scale', 10.0, 10.0), ('velocity_scale', -1.0, -1.0)],
)
def test_velocities_in_another_unit_or_none_leave_positions_alone(joint, kind, amount, factor):
    struck = np.array([joint in (None, 0), joint in (None, 1)])
    seen = message(7).state
    (came,) = FaultLine(PERIOD_NS, 0).apply(message(7), (on(kind, amount, joint),))
    wanted = np.where(struck, factor * seen.qd_radps, seen.qd_radps)
    np.testing.assert_array_equal(came.state.qd_radps, wanted)
    np.testing.assert_array_equal(came.state.q_rad, seen.q_rad)
    np.testing.assert_array_equal(came.effort_nm, [1.0, 2.0])


def test_the_usual_wrong_unit_of_velocity_is_degrees():
    assert KINDS['velocity_scale'].usual == pytest.approx(np.degrees(1.0), rel=1e-3)


@pytest.mark.parametrize(
    ('joint', 'efforts'), [(None, [1000.0, 2000.0]), (0, [1000.0, 2.0]), (1, [1.0, 2000.0])]
)
def test_measured_efforts_in_another_unit_leave_the_rest_alone(joint, efforts):
    given_in = message(7)
    (came,) = FaultLine(PERIOD_NS, 0).apply(given_in, (on('effort_scale', joint=joint),))
    assert came.effort_nm.tolist() == efforts
    assert given_in.effort_nm.tolist() == [1.0, 2.0]
    assert came[:3] == given_in[:3]


def test_before_the_first_command_there_is_no_effort_to_scale():
    (came,) = FaultLine(PERIOD_NS, 0).apply(message(0, ()), (on('effort_scale'),))
    assert came.effort_nm.size == 0


@given(st.floats(0.001, 100.0), st.integers(0, 5), st.integers(1, 20))
def test_a_clock_of_another_rate_starts_right_drifts_and_is_right_again(rate, begin, length):
    found = stamps(on('clock_rate', rate), begin, begin + length, 30)
    right = [message(k).stamp_ns for k in range(30)]
    assert found[: begin + 1] == right[: begin + 1]
    for k in range(begin, begin + length):
        assert found[k] - found[begin] == pytest.approx(rate * (k - begin) * PERIOD_NS, abs=1.0)
    assert found[begin + length :] == right[begin + length :]


def test_a_clock_that_sticks_advances_by_1_ns_per_state():
    found = stamps(on('clock_stick'), 3, 8, 10)
    assert np.diff(found[3:8]).tolist() == [1, 1, 1, 1]
    assert found[3] == message(3).stamp_ns
    assert found[8] == message(8).stamp_ns


def test_a_latency_from_the_first_state_on_leaves_no_gap_and_shows_in_the_stamps():
    schedule = FaultSchedule([Fault(kind='latency', at_s=0.0, amount=0.05)])
    line = FaultLine(PERIOD_NS, 0)
    # The robot waits for a command during the first ten states.
    out = [line.apply(message(k), schedule.active(max(k - 10, 0) * PERIOD_NS)) for k in range(40)]
    assert [len(batch) for batch in out] == [0] * 5 + [1] * 35
    ages = {message(k).stamp_ns - batch[0].stamp_ns for k, batch in enumerate(out) if batch}
    assert ages == {5 * PERIOD_NS}


def test_a_later_latency_and_every_other_fault_wait_for_the_first_command():
    later = Fault(kind='latency', at_s=0.1)
    schedule = FaultSchedule([later, Fault(kind='delay', at_s=0.0)])
    assert schedule.active(0) == ()
    assert [fault.kind for fault in schedule.active(PERIOD_NS)] == ['delay']
    assert later in schedule.active(10 * PERIOD_NS)


def robot_of(settings, plant='rk4', effort=(20.0, 5.0), qd=(0.8, -0.8)):
    begin = start([0.4, -0.3], list(qd), payload_kg=1.0)
    robot = FreeRunningRobot(plant, settings, begin, ORIGIN_NS, 10.0)
    stamp = SimpleNamespace(sec=0, nanosec=0)
    command = SimpleNamespace(header=SimpleNamespace(stamp=stamp), name=NAMES, effort=effort)
    assert robot.receive(command, 0)
    return robot


def test_a_brake_that_is_engaged_acts_instead_of_the_command_and_lets_go_again(settings):
    robot = robot_of(settings)
    robot.step(PERIOD_NS)
    robot.apply(perturbation_of([on('brake')], 0, 2))
    damping = brake_damping(settings.arm, 0.01)
    for _ in range(3):
        held = robot.reading.truth
        reading = robot.step(PERIOD_NS)
        assert reading.is_braking
        assert np.array_equal(reading.effort_nm, brake_effort(settings.arm, damping, 1.0, held))
    robot.apply(perturbation_of([], 0, 2))
    reading = robot.step(PERIOD_NS)
    assert not reading.is_braking


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
@pytest.mark.parametrize('joint', [None, 0, 1])
def test_jammed_joints_stand_still_whatever_the_torque_and_the_others_move(settings, plant, joint):
    if plant == 'bullet':
        pytest.importorskip('pybullet', reason="needs pip install 'metactl_ros[sim]'")
    robot = robot_of(settings, plant, (150.0, -60.0))
    robot.step(PERIOD_NS)
    where = robot.reading.truth.q_rad
    robot.apply(perturbation_of([on('jam', joint=joint)], 0, 2))
    readings = [robot.step(PERIOD_NS) for _ in range(30)]
    robot.apply(perturbation_of([], 0, 2))
    after = robot.step(PERIOD_NS).truth
    robot.close()
    struck = np.array([joint in (None, 0), joint in (None, 1)])
    for k, reading in enumerate(readings):
        assert reading.effort_nm.tolist() == [150.0, -60.0]
        assert np.array_equal(reading.truth.q_rad[struck], where[struck])
        assert not reading.truth.qd_radps[struck].any()
        assert reading.truth.stamp_ns == (k + 2) * PERIOD_NS
    assert (np.abs(readings[-1].truth.q_rad - where)[~struck] > 0.1).all()
    assert (after.q_rad != readings[-1].truth.q_rad).all()  # the jam is over
    assert after.stamp_ns == 32 * PERIOD_NS


@pytest.mark.parametrize('payload_kg', [0.0, 1.5])
@given(
    st.tuples(st.floats(-3.0, 3.0), st.floats(-2.6, 2.6)),
    st.floats(-5.0, 5.0),
    st.tuples(st.floats(-150.0, 150.0), st.floats(-60.0, 60.0)),
    st.sampled_from([(True, False), (False, True), (True, True)]),
)
def test_stops_give_a_jammed_joint_no_acceleration_and_leave_the_others_their_torque(
    settings, payload_kg, q, speed, effort, jammed
):
    is_jammed = np.array(jammed)
    state = ArmState(0, np.array(q), np.where(is_jammed, 0.0, speed))
    body, friction = settings.arm.body(payload_kg), settings.plant.friction
    memory = np.array([1.0, -2.0])
    acting = with_stops(body, friction, state, memory, np.array(effort), is_jammed)
    assert np.array_equal(acting[~is_jammed], np.array(effort)[~is_jammed])
    net = acting - friction_torque(friction, state.qd_radps, memory)
    qdd = body.forward_dynamics(state.q_rad, state.qd_radps, net)
    assert np.abs(qdd[is_jammed]).max() < 1e-6


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
def test_beside_a_jammed_shoulder_the_elbow_is_a_pendulum(settings, plant):
    if plant == 'bullet':
        pytest.importorskip('pybullet', reason="needs pip install 'metactl_ros[sim]'")
    robot = robot_of(settings, plant, (10.0, 5.0), qd=(0.0, 0.0))
    robot.apply(perturbation_of([on('jam', joint=0)], 0, 2))
    found = [robot.step(PERIOD_NS).truth.q_rad[1] for _ in range(50)][-1]
    robot.close()
    # A uniform rod with the payload of 1 kg at its tip, in steps of 0.1 ms.
    arm, friction, dt_s = settings.arm, settings.plant.friction, 1e-4
    mass, length = arm.link_masses_kg[1], arm.link_lengths_m[1]
    inertia = (mass / 3.0 + 1.0) * length**2
    q, qd, z = -0.3, 0.0, 0.0
    for _ in range(5000):
        gravity = (mass / 2.0 + 1.0) * length * arm.gravity_mps2 * np.cos(0.4 + q)
        drag = float(friction_torque(friction, np.array(qd), np.array(z)))
        z += dt_s * (friction.memory_gain_nmprad * qd - z / 2.0)
        qd += dt_s * (5.0 - gravity - drag) / inertia
        q += dt_s * qd
    assert abs(q + 0.3) > 1.0
    assert found == pytest.approx(q, abs=0.01 * abs(q + 0.3))  # 1 % of the way
