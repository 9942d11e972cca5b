# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Arms with six and seven joints in simulation: against each other, at rest, and at the bounds."""

from dataclasses import replace

import numpy as np
import pytest
from support import urdf_arms

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.lyapunov import solve_lyapunov
from metactl_ros.dynamics.bounds import friction_step, least_kd
from metactl_ros.dynamics.friction import Friction, friction_slope, friction_torque
from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import Hold
from metactl_ros.settings import load_settings, make_plant
from metactl_ros.sim.plant import PlantStart
from metactl_ros.sim.rollout import unguarded, without_warmup

pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
SHIPPED = ('ur5e', 'fr3')
EACH = pytest.mark.parametrize('name', SHIPPED)
NONE = Friction(
    coulomb_nm=0.0,
    static_nm=0.0,
    stribeck_velocity_radps=0.1,
    smoothing_velocity_radps=0.12,
    viscous_nmsprad=0.0,
    memory_gain_nmprad=0.0,
)
SUBSTEP_S = 1e-3


@pytest.fixture(scope='module', params=SHIPPED)
def settings(request):
    return load_settings(request.param)


def start_at(q, qd, payload_kg=0.0):
    lead = q.shape[:-1]
    return PlantStart(
        q_rad=q,
        qd_radps=qd,
        memory_nm=np.zeros_like(q),
        payload_kg=np.full(lead, payload_kg),
        tau_z_s=np.full(lead, 2.0),
        noise_seed=np.zeros(lead, dtype=np.int64),
    )


def bodies_without_rotors(name):
    """Return Pinocchio's plant and PyBullet's, of one arm, one sub-step per period."""
    pytest.importorskip('pybullet', reason="needs PyBullet: pip install 'metactl_ros[sim]'")
    from metactl_ros.sim.bullet_arm import BulletArm
    from metactl_ros.sim.described_arm import described_arm
    from metactl_ros.sim.implicit_arm import ImplicitArm

    arm = urdf_arms.checked(name)
    zeros = tuple(0.0 for _ in arm.file.joints)
    arm = arm._replace(file=replace(arm.file, rotor_inertia_kgm2=zeros))
    simulated = urdf_arms.urdf_body().SimulatedBody(arm, 1.0)
    implicit = ImplicitArm(simulated, len(zeros), NONE, 1000.0, 1000.0)
    return implicit, BulletArm(described_arm(arm), NONE, 1000.0, 1000.0)


@pytest.mark.parametrize('name', urdf_arms.NAMES)
def test_both_engines_accelerate_an_arm_alike(name):
    """Relative to the size of the accelerations, which without rotors are thousands of rad/s^2."""
    implicit, bullet = bodies_without_rotors(name)
    q, qd, torque, payloads = urdf_arms.states(name, 30, seed=4)
    for row in range(len(q)):
        start = start_at(q[row], qd[row], float(payloads[row]))
        found = []
        for plant in (implicit, bullet):
            plant.reset(start)
            found.append((plant.step(torque[row]).qd_radps - qd[row]) / SUBSTEP_S)
        size = np.abs(found[0]).max()
        np.testing.assert_allclose(found[1], found[0], rtol=0.0, atol=1e-10 * max(size, 1.0))
    bullet.close()


@EACH
def test_pybullet_is_refused_for_an_arm_with_rotors(name):
    settings = load_settings(name)
    with pytest.raises(ConfigError, match=r'knows no rotors.*take the plant pinocchio'):
        make_plant('bullet', settings)


def test_the_slope_of_friction_is_that_of_its_torque(settings):
    friction, num_joints = settings.plant.friction, len(settings.arm.joint_names)
    qd = np.linspace(-1.0, 1.0, 41)[:, np.newaxis] * np.ones(num_joints)
    ends = [friction_torque(friction, qd + side * 1e-6, 0.0 * qd) for side in (1.0, -1.0)]
    expected = (ends[0] - ends[1]) / 2e-6
    np.testing.assert_allclose(friction_slope(friction, qd), expected, rtol=1e-6, atol=1e-6)


def test_an_arm_at_rest_does_not_chatter(settings):
    """No velocity changes its sign from sub-step to sub-step, as explicit friction makes it do."""
    law = replace(settings.controller.law, rate_hz=1.0 / SUBSTEP_S)
    each_substep = replace(settings, controller=replace(settings.controller, law=law))
    plant = make_plant('pinocchio', each_substep)
    q = np.array(settings.plant.task.centre_rad)
    qd = np.random.default_rng(0).uniform(-0.01, 0.01, len(q))
    body = settings.arm.body()
    hold = body.at(q, 0.0 * q).gravity
    plant.reset(start_at(q, qd))
    speeds = np.array([plant.step(hold).qd_radps for _ in range(300)])
    assert turns(speeds).max() == 0
    assert np.abs(speeds[-1]).max() < 2e-3  # it creeps: friction is smooth, gravity unbalanced


def turns(speeds):
    """Return how often each joint turns round in three sub-steps running."""
    changes = speeds[1:] * speeds[:-1] < 0.0
    return np.sum(changes[2:] & changes[1:-1] & changes[:-2], axis=0)


def test_an_explicit_step_does_chatter_where_its_bound_says_so():
    """Friction steeper at rest than a step of 1 ms allows, and velocities within its width."""
    settings = load_settings('ur5e')
    steep = replace(settings.plant.friction, smoothing_velocity_radps=1e-3)
    assert friction_step(settings.arm, steep, SUBSTEP_S).value > 2.0
    law = replace(settings.controller.law, rate_hz=1.0 / SUBSTEP_S)
    world = replace(settings.plant, friction=steep)
    each = replace(settings, plant=world, controller=replace(settings.controller, law=law))
    plant, body = make_plant('pinocchio', each), settings.arm.body()
    q = np.array(settings.plant.task.centre_rad)
    hold, v = body.at(q, 0.0 * q).gravity, np.full(len(q), 5e-4)
    plant.reset(start_at(q, v))
    implicit = np.array([plant.step(hold).qd_radps for _ in range(100)])
    explicit = []
    for _ in range(100):
        v = v + SUBSTEP_S * body.at(q, v).solve(-friction_torque(steep, v, 0.0 * v))
        explicit.append(v)
    assert turns(np.array(explicit)).max() > 50
    assert turns(implicit).max() == 0


def test_a_batch_is_its_arms_one_by_one(settings):
    plant, task = make_plant('pinocchio', settings), settings.plant.task
    rng = np.random.default_rng(0)
    q = np.array(task.centre_rad) + rng.uniform(-0.5, 0.5, (3, len(task.omega_radps)))
    qd, effort = rng.uniform(-0.5, 0.5, (2, *q.shape))
    payloads = np.array([0.0, 1.0, 2.0])
    start = replace(start_at(q, qd), payload_kg=payloads)
    plant.reset(start)
    for _ in range(5):
        together = plant.step(effort)
    for row in range(3):
        plant.reset(start_at(q[row], qd[row], payloads[row]))
        for _ in range(5):
            alone = plant.step(effort[row])
        np.testing.assert_array_equal(alone.q_rad, together.q_rad[row])
        np.testing.assert_array_equal(alone.qd_radps, together.qd_radps[row])


def test_below_the_least_kd_an_arm_falls_with_its_payload_and_above_it_holds(settings):
    """From where the law would rest in the worst posture: balanced there, and pushed a little."""
    arm, payload_kg = settings.arm, settings.plant.task.payload_max_kg
    worst = least_kd(arm, payload_kg, settings.controller.law.slope_per_s)
    moved = {}
    for factor in (0.8, 1.25):
        moved[factor] = _moved_rad(settings, worst.q_rad, factor * worst.value, payload_kg)
    assert moved[1.25] < 0.05
    assert moved[0.8] > 0.3


def _moved_rad(settings, q, kd, payload_kg):
    """Return how far an arm without friction moves in 12 s from where K_d balances a payload."""
    law = replace(settings.controller.law, nominal_kd_per_s=kd, nominal_lambda_per_s=5.0)
    box = replace(settings.controller.gain_box, kd_per_s=(0.5 * kd, 2.0 * kd))
    matrix = solve_lyapunov(np.eye(2 * len(q)), law, settings.controller.lyapunov.alpha_per_s)
    lyapunov = replace(settings.controller.lyapunov, p_matrix=tuple(map(tuple, matrix.tolist())))
    controller = replace(settings.controller, law=law, gain_box=box, lyapunov=lyapunov)
    loop = ControlLoop(settings.arm, unguarded(without_warmup(controller)), 'count')
    plant = make_plant(
        'pinocchio', replace(settings, plant=replace(settings.plant, friction=NONE))
    )
    per_kg = settings.arm.body_per_kg().at(q, 0.0 * q).gravity
    sag = payload_kg * settings.arm.body().at(q, 0.0 * q).solve(per_kg)
    goal = q + sag / (kd * law.slope_per_s)
    motion = Hold(goal)
    push = np.random.default_rng(1).uniform(-0.05, 0.05, len(q))
    state = plant.reset(start_at(q, push, payload_kg))
    loop.reset(state)
    for _ in range(1200):
        reference = motion.at(0.0)
        loop.observe(state, reference, 0.0)
        step = loop.actuate(loop.nominal_action, state, reference, state.stamp_ns)
        state = plant.step(step.effort_nm)
    return float(np.abs(plant.true_q_rad - q).max())
