# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import ast
from dataclasses import replace
from pathlib import Path
import time

import numpy as np
import pytest
from support.tick_logs import ARM, Day, log_of, PERIOD_NS, rows_of, SETTINGS, shield_row

from metactl_ros.baselines import BASELINES, load_classical, load_learned
from metactl_ros.check import certificates, guided_effort, matrix_law
from metactl_ros.check.certificates import check_certificates, unverifiable_ticks
from metactl_ros.control.lyapunov import LyapunovFunction, solve_lyapunov
from metactl_ros.control.modes import Mode
from metactl_ros.control.shield import Reason
from metactl_ros.errors import ConfigError
from metactl_ros.settings import policy_file

CONTROLLER = SETTINGS.controller
STEP_NM = np.array(ARM.limits.effort_rate_nmps) * PERIOD_NS / 1e9


def wild():
    """A policy that proposes anything, at times far out of its box."""
    rng = np.random.default_rng(0)
    return lambda window: rng.uniform(-1.6, 1.6, 8)


@pytest.fixture(scope='module')
def shipped():
    bundle = load_learned(policy_file('paper_sac'), ARM, CONTROLLER)
    return log_of(Day(bundle.policy, controller=bundle.controller).bad().ticks)


@pytest.fixture(scope='module')
def moved():
    return log_of(Day(wild()).bad().ticks)


@pytest.fixture(scope='module')
def baselines():
    """Return (log, settings) of each classical controller on its bad day."""
    made = {name: load_classical(name, CONTROLLER, None, 0.75) for name in BASELINES}
    return {
        name: (
            log_of(Day(baseline.policy, controller=baseline.controller).bad().ticks),
            baseline[0],
        )
        for name, baseline in made.items()
    }


def check(log, controller=CONTROLLER):
    return check_certificates(log, ARM, controller)


def tick_in(log, mode, nth=20):
    """Return a tick in a mode; in FAULT the first: then the reference is where the arm is."""
    return int(np.flatnonzero(log.shield['mode'] == mode)[0 if mode == Mode.FAULT else nth])


def changed(log, name, tick, value, column=0):
    """Return a log in which one number is another."""
    if name in log.shield:
        values = log.shield[name].copy()
        values[tick] = value
        return replace(log, shield={**log.shield, name: values})
    values = getattr(log, name).copy()
    values[tick, column] = value
    return replace(log, **{name: values})


def names_at(violations, tick):
    """Return what was found at a tick, and that nothing was found elsewhere."""
    assert {violation.tick for violation in violations} == {tick}
    assert all(not violation.found <= violation.allowed for violation in violations)
    return {violation.what for violation in violations}


@pytest.mark.parametrize('name', ['shipped', 'moved'])
def test_a_run_through_every_mode_has_sound_certificates(name, request):
    log = request.getfixturevalue(name)
    assert set(log.shield['mode']) == set(Mode)
    assert check(log) == []
    assert not unverifiable_ticks(log, CONTROLLER).any()


@pytest.mark.parametrize('name', BASELINES)
def test_a_baseline_through_every_mode_has_sound_certificates(baselines, name):
    log, controller = baselines[name]
    assert set(log.shield['mode']) == set(Mode)
    assert check(log, controller) == []
    assert (log.estimate_nm is None) == (name == 'ct_best')


@pytest.mark.parametrize('mode', list(Mode))
def test_another_estimate_than_the_one_acted_upon_is_found(baselines, mode):
    log, controller = baselines['momentum_observer']
    tick = tick_in(log, mode, 4)
    value = log.estimate_nm[tick, 1] + 1e-3
    violations = check(changed(log, 'estimate.joint2', tick, value), controller)
    if mode == Mode.NOMINAL:
        assert {'normal', 'constant', 'effort'} <= names_at(violations, tick)
    else:
        assert violations == []  # nothing counts on it


def test_an_estimate_beyond_what_the_limits_is_found(baselines):
    log, controller = baselines['slotine_li']
    tick = tick_in(log, Mode.WARMUP)
    found = check(changed(log, 'estimate.joint1', tick, 150.1), controller)
    assert 'estimate' in names_at(found, tick)


def test_a_log_without_the_estimate_that_was_weighed_is_refused(baselines):
    log, controller = baselines['momentum_observer']
    shield = {k: values for k, values in log.shield.items() if not k.startswith('estimate.')}
    with pytest.raises(ConfigError, match='~/shield lacks estimate'):
        check(replace(log, shield=shield), controller)


def test_of_a_range_that_is_not_symmetric_both_ends_count(moved):
    """The same ticks, of an arm that was not allowed to be where it was and should be."""
    lower, upper = moved.q_rad.min(axis=0), moved.q_rad.max(axis=0)
    is_low = moved.q_rad[:, 0] < 0.5 * (lower + upper)[0]
    assert is_low.any()
    narrow = replace(ARM.limits, position_lower_rad=(float(0.5 * (lower + upper)[0]), -2.6))
    found = check_certificates(moved, replace(ARM, limits=narrow), CONTROLLER)
    is_nominal = moved.shield['mode'] == Mode.NOMINAL
    named = {violation.tick for violation in found if violation.what == 'mode'}
    assert named >= set(np.flatnonzero(is_low & is_nominal).tolist())
    as_before = replace(ARM.limits, position_lower_rad=tuple(ARM.limits.lower_rad.tolist()))
    assert check_certificates(moved, replace(ARM, limits=as_before), CONTROLLER) == []


def test_the_run_has_projections_to_check(moved):
    assert (moved.shield['reason'] == Reason.PROJECTED).sum() > 100


def test_an_empty_set_is_believed_only_where_it_is_empty():
    margin = replace(CONTROLLER.lyapunov, disturbance_radps2=20.0)
    controller = replace(CONTROLLER, lyapunov=margin)
    day = Day(wild(), controller=controller)
    day.go(200)
    log = log_of(day.ticks)
    empty = np.flatnonzero(log.shield['reason'] == Reason.EMPTY_SET)
    filled = np.flatnonzero(log.shield['reason'] != Reason.EMPTY_SET)
    assert len(empty)
    assert len(filled)
    assert check(log, controller) == []
    found = check(changed(log, 'is_feasible', empty[0], 1.0), controller)
    assert 'admissible' in names_at(found, empty[0])
    found = check(changed(log, 'is_feasible', filled[0], 0.0), controller)
    assert 'is_feasible' in names_at(found, filled[0])


@pytest.mark.parametrize('mode', list(Mode))
def test_gains_that_moved_are_found(moved, mode):
    tick = tick_in(moved, mode, 3)
    found = check(changed(moved, 'gains', tick, moved.gains[tick, 2] + 1e-4, 2))
    assert 'gains' in names_at(found, tick)


def test_gains_beyond_the_half_space_are_found(moved):
    low, high = np.repeat([[10.0, 60.0], [1.0, 10.0], [-6.0, 6.0], [-3.0, 3.0]], 2, axis=0).T
    asked = 0.5 * (low + high) + 0.5 * (high - low) * np.clip(moved.action, -1.0, 1.0)
    normal = np.stack([moved.shield[f'normal.{name}'] for name in moved.gain_names], axis=1)
    excess = np.sum(normal * asked, axis=1) + moved.shield['constant']
    is_beyond = (excess > 1e-3) & (moved.shield['mode'] == Mode.NOMINAL)
    tick = int(np.flatnonzero(is_beyond)[5])
    gains = np.where(np.arange(len(asked))[:, np.newaxis] == tick, asked, moved.gains)
    found = names_at(check(replace(moved, gains=gains)), tick)
    assert {'admissible', 'gains', 'excess', 'effort'} <= found


def test_gains_out_of_their_box_are_found(shipped):
    tick = tick_in(shipped, Mode.NOMINAL)
    found = check(changed(shipped, 'gains', tick, 61.0))
    assert 'gain box' in names_at(found, tick)


@pytest.mark.parametrize('mode', list(Mode))
@pytest.mark.parametrize('joint', [0, 1])
def test_an_effort_moved_by_a_millionth_is_found(shipped, mode, joint):
    tick = tick_in(shipped, mode, 4)
    moved = changed(shipped, 'effort_nm', tick, shipped.effort_nm[tick, joint] + 1e-6, joint)
    assert 'effort' in names_at(check(moved), tick)


@pytest.mark.parametrize(
    'name', ['normal.kd_per_s.joint1', 'normal.feed_forward.bias.joint2', 'constant']
)
@pytest.mark.parametrize('mode', list(Mode))
def test_another_half_space_is_found(shipped, name, mode):
    tick = tick_in(shipped, mode, 1)
    value = shipped.shield[name][tick] * (1.0 + 1e-6)
    what = name.split('.')[0]
    assert names_at(check(changed(shipped, name, tick, value)), tick) == {what}


@pytest.mark.parametrize('name', ['excess', 'excess_after_limits', 'lyapunov_value', 'distance'])
def test_a_flattered_certificate_is_found(moved, name):
    tick = int(np.flatnonzero(moved.shield['reason'] == Reason.PROJECTED)[7])
    value = moved.shield[name][tick] - 1e-3
    assert names_at(check(changed(moved, name, tick, value)), tick) == {name}


def test_a_hidden_move_is_found(moved):
    tick = int(np.flatnonzero(moved.shield['was_moved'])[5])
    assert names_at(check(changed(moved, 'was_moved', tick, 0.0)), tick) == {'was_moved'}


def test_an_effort_beyond_its_size_is_found(shipped):
    tick = tick_in(shipped, Mode.NOMINAL)
    assert 'effort size' in names_at(check(changed(shipped, 'effort_nm', tick, 150.1)), tick)


def test_an_effort_beyond_its_rate_is_found(shipped):
    tick = tick_in(shipped, Mode.WARMUP)
    far = shipped.effort_before_nm[tick, 1] + STEP_NM[1] + 1e-3
    found = names_at(check(changed(shipped, 'effort_nm', tick, far, 1)), tick)
    assert 'effort rate' in found


def test_an_effort_that_starts_from_another_than_the_last_is_found(shipped):
    tick = tick_in(shipped, Mode.NOMINAL)
    before = shipped.effort_before_nm[tick, 0] + 1e-9
    found = check(changed(shipped, 'effort_before_nm', tick, before))
    assert names_at(found, tick) == {'effort before'}


@pytest.mark.parametrize('name', ['q_rad', 'effort_nm', 'gains', 'excess', 'qdd_desired_radps2'])
@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_what_is_not_finite_is_found(shipped, name, value):
    tick = tick_in(shipped, Mode.NOMINAL)
    assert names_at(check(changed(shipped, name, tick, value)), tick) == {'finite'}


@pytest.mark.parametrize(
    ('name', 'value', 'mode'),
    [
        ('state_is_fresh', 0.0, Mode.NOMINAL),
        ('reference_is_valid', 0.0, Mode.NOMINAL),
        ('policy_is_on_time', 0.0, Mode.NOMINAL),
        ('error', 1.0, Mode.BLIND),
        ('action', np.nan, Mode.NOMINAL),
        ('mode', 0.5, Mode.NOMINAL),
    ],
)
def test_a_mode_too_mild_for_its_inputs_is_found(shipped, name, value, mode):
    tick = tick_in(shipped, mode)
    assert 'mode' in names_at(check(changed(shipped, name, tick, value)), tick)


def test_the_gains_of_another_mode_are_found(shipped):
    tick = tick_in(shipped, Mode.STOP)
    gains = shipped.gains.copy()
    gains[tick] = shipped.gains[tick_in(shipped, Mode.NOMINAL)]
    assert 'gains' in names_at(check(replace(shipped, gains=gains)), tick)


def test_an_altered_state_is_found(shipped):
    tick = tick_in(shipped, Mode.NOMINAL)
    found = check(changed(shipped, 'q_rad', tick, shipped.q_rad[tick, 0] + 1e-6))
    assert {'effort', 'normal'} <= names_at(found, tick)


def test_a_torque_held_while_blind_is_found(shipped):
    ticks = np.flatnonzero(shipped.shield['mode'] == Mode.BLIND)
    efforts = shipped.effort_nm.copy()
    efforts[ticks] = efforts[ticks[0] - 1]
    found = {v.tick for v in check(replace(shipped, effort_nm=efforts)) if v.what == 'effort'}
    assert found == set(ticks)


@pytest.mark.parametrize('mode', [Mode.NOMINAL, Mode.STOP, Mode.BLIND])
def test_missing_ticks_are_no_violation_and_what_they_hide_is_named(shipped, mode):
    gone = tick_in(shipped, mode, 0)  # the first of its mode, where it begins to hold or fade
    kept = np.delete(np.arange(len(shipped.stamp_ns)), [gone, gone + 1])
    log = rows_of(shipped, kept)
    assert check(log) == []
    hidden = np.flatnonzero(unverifiable_ticks(log, CONTROLLER))
    assert (len(hidden) > 0) == (mode == Mode.STOP)
    assert all(log.shield['mode'][hidden] == Mode.STOP)


def test_a_log_may_begin_anywhere(shipped):
    for begin in range(1, len(shipped.stamp_ns), 29):
        assert check(rows_of(shipped, slice(begin, None))) == []


def test_sixty_seconds_take_well_below_one(shipped):
    rows = np.arange(6000) % len(shipped.stamp_ns)
    log = rows_of(shipped, rows)
    times = []
    for _ in range(3):
        begin = time.process_time()
        check(log)
        times.append(time.process_time() - begin)
    assert min(times) < 1.0


def test_the_law_has_nothing_in_common_with_the_one_it_checks():
    allowed = {'Arm', 'ControllerSettings', 'Mode', 'TickLog', 'ConfigError'}
    allowed |= {'Array', 'NANOSECONDS_PER_SECOND', 'period_ns_of'}
    allowed |= {'MatrixLaw', 'Motion', 'product', 'Sized', 'ArmModel', 'FromUrdf', 'ChainDynamics'}
    allowed |= {'Chain', 'fastest_radps', 'guided_effort'}
    for module in (certificates, matrix_law, guided_effort):
        tree = ast.parse(Path(module.__file__).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= {'numpy'}
            elif isinstance(node, ast.ImportFrom) and node.module.startswith('metactl_ros'):
                assert {alias.name for alias in node.names} <= allowed


def test_the_log_of_these_tests_is_what_the_node_tells(shipped):
    pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
    from metactl_ros.ros.messages import shield_values

    day = Day(wild())
    day.go(60)
    baseline = load_classical('ct_integral', CONTROLLER, None, 0.0)
    other = Day(baseline.policy, controller=baseline.controller)
    other.go(60)
    for tick in (*day.ticks, *other.ticks):
        assert [*shield_row(tick).values()] == shield_values(tick, tick.state.stamp_ns, 0)


def test_certificates_of_gains_stated_per_joint_are_sound_and_those_of_others_are_not():
    law = replace(
        CONTROLLER.law,
        nominal_kd_per_s=(30.0, 28.0),
        nominal_lambda_per_s=(5.0, 4.9),
        coulomb_smoothing_radps=(0.12, 0.3),
    )
    box = replace(CONTROLLER.gain_box, kd_per_s=((10.0, 60.0), (12.0, 50.0)))
    P = solve_lyapunov(np.eye(4), law, CONTROLLER.lyapunov.alpha_per_s)
    lyapunov = replace(CONTROLLER.lyapunov, p_matrix=tuple(map(tuple, P.tolist())))
    controller = replace(CONTROLLER, law=law, gain_box=box, lyapunov=lyapunov)
    log = log_of(Day(wild(), controller=controller).bad().ticks)
    assert not check(log, controller)
    for part in ('law', 'gain_box'):
        other = replace(controller, **{part: getattr(CONTROLLER, part)})
        assert 'gains' in {violation.what for violation in check(log, other)}


def with_margin(controller, rho_nm):
    return replace(controller, lyapunov=replace(controller.lyapunov, rho_nm=rho_nm))


@pytest.fixture(scope='module')
def wary():
    """Return (log, settings) of an observer with a margin and proposals all over its box."""
    made = load_classical('momentum_observer', CONTROLLER, None, 0.75)
    controller = with_margin(made.controller, (0.11, 0.1))
    return log_of(Day(wild(), controller=controller).bad().ticks), controller


def test_certificates_that_count_on_an_estimate_within_a_margin_are_sound(wary):
    log, controller = wary
    assert set(log.shield['mode']) == set(Mode)
    assert log.shield['was_moved'].any()
    assert check(log, controller) == []


@pytest.mark.parametrize('rho_nm', [0.0, (0.11, 0.1 + 1e-6), (0.1, 0.11)])
def test_the_certificates_of_another_margin_are_found(wary, rho_nm):
    log, controller = wary
    found = check(log, with_margin(controller, rho_nm))
    assert 'constant' in {violation.what for violation in found}


def test_a_position_gain_that_was_not_the_recorded_one_is_found(wary):
    log, controller = wary
    tick = tick_in(log, Mode.NOMINAL)
    found = names_at(
        check(changed(log, 'gains', tick, log.gains[tick, 4] + 0.5, 4), controller), tick
    )
    assert {'gains', 'wanted', 'effort'} <= found


@pytest.mark.parametrize('seed', range(10))
def test_both_programs_find_the_same_level_for_a_margin(seed):
    rng = np.random.default_rng(seed)
    factor, alpha = rng.normal(size=(4, 4)), CONTROLLER.lyapunov.alpha_per_s
    law = replace(CONTROLLER.law, nominal_kd_per_s=(30.0, 25.0), nominal_lambda_per_s=(5.0, 4.0))
    P = solve_lyapunov(factor @ factor.T + 0.1 * np.eye(4), law, alpha)
    rho = tuple(rng.uniform(0.0, 2.0, 2).tolist())
    lyapunov = replace(CONTROLLER.lyapunov, p_matrix=tuple(map(tuple, P.tolist())), rho_nm=rho)
    made = load_classical('momentum_observer', CONTROLLER, None, 0.0).controller
    controller = replace(made, law=law, lyapunov=lyapunov)
    expected = LyapunovFunction(lyapunov, law, ARM.sample_inertias()).target_level
    found = matrix_law.MatrixLaw(ARM, controller)._target_level
    assert found == pytest.approx(expected, rel=1e-11)
