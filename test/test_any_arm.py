# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Arms from URDFs: what they get that state nothing, what is refused, and what drives them."""

from dataclasses import replace
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
from support import DOMAIN
from support.episodes import as_followed

from metactl_ros.arm_defaults import frequencies
from metactl_ros.baselines import CLASSICAL, ConstantPolicy, load_classical, load_learned
from metactl_ros.check.certificates import _rounding_nm, RELATIVE
from metactl_ros.check.matrix_law import MatrixLaw, Motion, Sized
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.lyapunov import for_each_joint
from metactl_ros.control.modes import Mode
from metactl_ros.dynamics.bounds import least_kd
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.errors import BundleError, ConfigError
from metactl_ros.motion.reference import motion_limits
from metactl_ros.processes import (
    best_controller,
    default_parameters,
    loopback_environment,
    ros_arguments,
    running,
    Setup,
)
from metactl_ros.runtime.controller import with_full_window
from metactl_ros.settings import (
    arm_path,
    load_arm,
    load_settings,
    make_plant,
    share_directory,
    shipped_policy,
)
from metactl_ros.sim.rollout import run_episode, without_warmup
from metactl_ros.sim.task import draw_evaluation

pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
SHIPPED = {'fr3': 7, 'ur5e': 6}
STEPS = 300


@pytest.fixture(scope='module', params=SHIPPED)
def settings(request):
    return load_settings(request.param)


def beside(tmp_path, **files):
    """Return the path of a copy of the UR5e with files beside it."""
    for name in ('ur5e.yaml', 'ur5e.urdf'):
        copy(share_directory() / 'config' / 'arms' / name, tmp_path)
    for kind, text in files.items():
        (tmp_path / f'ur5e.{kind}.yaml').write_text(text)
    return tmp_path / 'ur5e.yaml'


def test_arms_go_by_names():
    assert load_arm() == load_arm('two_link') == load_arm(arm_path('two_link'))
    assert isinstance(load_arm(), Arm)
    with pytest.raises(ConfigError, match=r"one of \['two_link', 'fr3', 'ur5e'\], found 'fr4'"):
        load_arm('fr4')


def test_every_number_of_an_arm_has_its_joints(settings):
    n = len(settings.arm.joint_names)
    assert n in SHIPPED.values()
    assert settings.controller.num_joints == n
    assert len(settings.plant.task.centre_rad) == len(settings.plant.friction.static_nm) == n
    static, effort = settings.plant.friction.static_nm, np.array(settings.arm.limits.effort_nm)
    np.testing.assert_allclose(static, 0.02 * effort)


def test_the_reference_keeps_to_the_limits_of_motion(settings):
    bounds, task = motion_limits(settings.arm), settings.plant.task
    extent = task.sinusoid(np.zeros(len(task.omega_radps))).extent()
    assert (extent.lower_rad > bounds.lower_rad).all()
    assert (extent.upper_rad < bounds.upper_rad).all()
    assert (extent.velocity_radps < bounds.velocity_radps).all()
    assert (extent.acceleration_radps2 < bounds.acceleration_radps2).all()


def test_frequencies_are_those_of_the_two_link_arm_at_first_and_all_differ():
    np.testing.assert_allclose(frequencies(2), load_settings().plant.task.omega_radps)
    assert len(set(frequencies(12).tolist())) == 12
    assert frequencies(12).max() < 1.42


def test_gains_hold_the_rated_payload_by_default(settings):
    payload_kg = settings.plant.task.payload_max_kg
    worst = least_kd(settings.arm, payload_kg, settings.controller.law.slope_per_s)
    assert settings.controller.gain_box.kd_per_s[0] >= 1.2 * worst.value
    assert settings.controller.law.nominal_kd_per_s >= 1.5 * worst.value


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('gain_box: {kd_per_s: [12.0, 60.0]}', r'gain_box\.kd_per_s: expected more than 16\.\d+ '),
        (
            'gain_box: {kd_per_s: [5.0, 60.0]}\nlaw: {nominal_kd_per_s: 16.0}',
            r'found 5; it falls from q = \[',
        ),
        ('gain_boxes: {}', "unknown key 'gain_boxes'; did you mean 'gain_box'"),
        ('[]', r'ur5e\.controller\.yaml: expected a table'),
    ],
)
def test_gains_with_which_the_arm_would_fall_are_refused_with_the_posture(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_settings(beside(tmp_path, controller=text))


def test_files_beside_the_arm_file_overrule_key_by_key(tmp_path):
    path = beside(
        tmp_path,
        plant='friction: {static_nm: 1.0, coulomb_nm: 0.5}\ntask: {tau_z_s: 3.0}',
        controller='lyapunov: {p_matrix: [[1.0, 0.01], [0.01, 0.005]]}',
    )
    found, usual = load_settings(path), load_settings('ur5e')
    assert found.plant.friction.static_nm == 1.0
    assert found.plant.task == replace(usual.plant.task, tau_z_s=3.0)
    P = np.array(found.controller.lyapunov.p_matrix)
    np.testing.assert_array_equal(P, np.kron([[1.0, 0.01], [0.01, 0.005]], np.eye(6)))
    assert found.controller.gain_box == usual.controller.gain_box


def test_a_block_is_that_of_every_joint_and_a_full_matrix_stays():
    full = np.eye(4).tolist()
    assert for_each_joint(full, 2) == full
    assert for_each_joint([[1.0, 0.0], [0.0, 2.0]], 1) == [[1.0, 0.0], [0.0, 2.0]]
    assert np.diag(for_each_joint([[1.0, 0.0], [0.0, 2.0]], 2)).tolist() == [1, 1, 2, 2]


def test_a_p_of_two_joints_is_refused_for_another_arm(tmp_path):
    rows = ', '.join(str(row) for row in np.eye(4).tolist())
    with pytest.raises(ConfigError, match='expected 2 entries, one per joint, found 6'):
        load_settings(beside(tmp_path, controller=f'lyapunov: {{p_matrix: [{rows}]}}'))


def test_a_bundle_of_the_two_link_arm_is_refused(settings):
    with pytest.raises(BundleError, match='made for the two-link arm.*take a classical'):  # noqa: RUF043
        load_learned(shipped_policy(), settings.arm, settings.controller)


@pytest.mark.parametrize('name', CLASSICAL)
def test_every_classical_controller_drives_the_arm(settings, name):
    """With half the rated payload, 3 s: NOMINAL, efforts within limits, far from a lost arm."""
    payload_kg = 0.5 * settings.plant.task.payload_max_kg
    log = driven(settings, name, payload_kg)
    assert set(log.modes.ravel()) == {Mode.NOMINAL}
    assert (np.abs(log.effort_nm) <= settings.arm.limits.effort_nm).all()
    assert rmse_rad(log) < 0.5 * settings.controller.guard.tracking_error_rad


def test_the_momentum_observer_is_as_good_as_the_oracle_within_three_times(settings):
    payload_kg = settings.plant.task.payload_max_kg
    observer, oracle = (
        rmse_rad(driven(settings, name, payload_kg)) for name in ('momentum_observer', 'oracle')
    )
    assert observer < 3.0 * oracle


def driven(settings, name, payload_kg):
    controller, policy = load_classical(name, settings.controller, None, payload_kg, settings.arm)
    loop = ControlLoop(settings.arm, without_warmup(controller))
    episode = draw_evaluation(settings.plant.task, 42, payload_kg, 1, 2.0).of_arm(0)
    plant = make_plant('pinocchio', settings)
    policy = policy or ConstantPolicy(loop.nominal_action)
    return run_episode(plant, episode, policy, loop, STEPS)


def rmse_rad(log):
    error = (log.true_q_rad - log.q_desired_rad)[STEPS // 2 :]
    return float(np.sqrt(np.mean(np.sum(error**2, axis=-1))))


@pytest.mark.parametrize('name', ['ct', 'momentum_observer'])
def test_the_second_program_finds_the_same_effort_and_condition(settings, name):
    controller, _ = load_classical(name, settings.controller, None, 0.0, settings.arm)
    loop, law = ControlLoop(settings.arm, controller), MatrixLaw(settings.arm, controller)
    assert law._target_level == pytest.approx(loop.lyapunov.target_level, rel=1e-12)
    motion = settings.plant.task.sinusoid(np.zeros(len(settings.arm.joint_names)))
    plant = make_plant('pinocchio', settings)
    episode = draw_evaluation(settings.plant.task, 1, 1.0, 1, 2.0).of_arm(0)
    state = plant.reset(episode.start)
    loop.reset(state)
    reference = episode.reference.at(0.0)
    loop.observe(state, reference, 0.0)
    step = loop.actuate(loop.nominal_action, state, reference, state.stamp_ns)
    assert motion.at(0.0).q_rad.shape == state.q_rad.shape
    goal = (reference.q_rad, reference.qd_radps, reference.qdd_radps2)
    estimate = None if step.estimate_nm is None else step.estimate_nm[np.newaxis] * 0.0
    rows = [x[np.newaxis] for x in (state.q_rad, state.qd_radps, *goal)]
    second = Motion(*rows, estimate)
    theta = step.decision.gains.theta[np.newaxis]
    np.testing.assert_allclose(law.effort(second, theta).value[0], step.wanted_nm, atol=1e-9)
    excess = law.condition(second).excess(theta).value[0]
    assert excess == pytest.approx(step.decision.excess, abs=1e-9)


def test_gravity_of_both_models_is_apart_by_no_more_than_rounding_even_about_the_vertical(
    settings,
):
    law, limits = MatrixLaw(settings.arm, settings.controller), settings.arm.limits
    q = np.random.default_rng(0).uniform(
        limits.lower_rad, limits.upper_rad, (200, len(limits.effort_nm))
    )
    second_nm = law.chain.gravity_nm(q)
    first_nm = np.array([settings.arm.body().at(row, np.zeros_like(row)).gravity for row in q])
    off, allowed = (
        abs(first_nm - second_nm),
        _rounding_nm(Sized(second_nm, abs(second_nm)), second_nm),
    )
    assert (off <= allowed).all()
    assert (off[:, 0] > RELATIVE * abs(second_nm[:, 0])).any()  # which its own size would forbid


def test_in_real_time_an_arm_from_a_urdf_gets_gains_that_bear_late_states(tmp_path):
    def told(**chosen):
        return default_parameters(Setup(**chosen)).get('controller_node', {})

    assert Path(told(arm_file='fr3')['classical_file']).name == 'delayed.yaml'
    assert set(told(arm_file='fr3', plant='none')) == {'classical_file'}  # nor does a robot wait
    assert 'classical_file' not in told(arm_file='fr3', lockstep=True)
    assert 'classical_file' not in told()
    assert told(plant='none') == {}
    chosen = Setup(arm_file='fr3', classical_file='mine.yaml')
    arguments = ros_arguments(chosen, 'controller_node')
    given = [text for text in arguments if text.startswith('classical_file')]
    assert given[-1] == 'classical_file:="mine.yaml"'  # of two values the later counts


@pytest.mark.parametrize(('file', 'is_lost'), [('nominal', True), ('delayed', False)])
def test_an_observer_bears_a_late_state_with_those_gains(file, is_lost):
    settings = load_settings('fr3')
    sensing = replace(settings.plant.sensing, transport_delay_s=0.02)
    settings = replace(settings, plant=replace(settings.plant, sensing=sensing))
    gains = share_directory() / 'config' / 'classical' / f'{file}.yaml'
    name, payload_kg = 'momentum_observer', 0.75
    controller, policy = load_classical(name, settings.controller, gains, payload_kg, settings.arm)
    loop = ControlLoop(settings.arm, with_full_window(controller))
    episode = draw_evaluation(settings.plant.task, 42, payload_kg, 1, 2.0).of_arm(0)
    log = run_episode(make_plant('pinocchio', settings), episode, policy, loop, 300)
    assert bool((log.modes >= Mode.STOP).any()) is is_lost


@pytest.mark.parametrize(('arm', 'second'), [('', 'policy'), ('fr3', 'momentum_observer')])
def test_the_best_controller_is_one_that_the_arm_can_have(arm, second):
    assert best_controller(load_settings(arm)) == second


@pytest.mark.ros
@pytest.mark.parametrize('arm', SHIPPED)
def test_a_node_in_lockstep_gives_the_efforts_of_the_loop_in_process(arm, tmp_path):
    pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    from support.ros_peer import wait_until

    from metactl_ros.bag.tick_log import read_ticks
    from metactl_ros.replay.verdict import replay_bag, ReplayRequest

    name, bag = 'momentum_observer', tmp_path / 'bag'
    chosen = {'controller': name, 'arm_file': arm, 'payload_kg': 1.5, 'log_level': 'error'}
    setup = Setup(lockstep=True, seed=5, record=bag, **chosen)
    settings = load_settings(arm)
    controller, policy = load_classical(name, settings.controller, None, 1.5, settings.arm)
    loop = ControlLoop(settings.arm, with_full_window(controller))
    plant = make_plant('pinocchio', settings)
    expected = run_episode(
        plant, as_followed(setup.episode(), motion_limits(settings.arm)), policy, loop, STEPS
    )

    def num_ticks():
        try:
            return len(read_ticks(next(bag.glob('*.mcap'))).stamp_ns)
        except Exception:  # not yet there, or not yet complete
            return 0

    with running(setup, loopback_environment(DOMAIN)):
        wait_until(lambda: num_ticks() > STEPS, timeout_s=120.0)
    log = read_ticks(bag)
    np.testing.assert_array_equal(log.q_rad[:STEPS], expected.q_rad[:STEPS])
    np.testing.assert_array_equal(log.shield['mode'][:STEPS], expected.modes)
    np.testing.assert_array_equal(log.gains[:STEPS], expected.gains)
    np.testing.assert_array_equal(log.effort_nm[:STEPS], expected.effort_nm)
    again = replay_bag(ReplayRequest(bag=bag))  # which finds the arm by itself
    assert again.facts['arm'] == arm
    assert again.again.first_difference is None
    assert again.violations == []
