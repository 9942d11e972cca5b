# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Control loops with an estimator: when its estimate acts, and what cannot spoil it."""

from dataclasses import replace
from functools import cache

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.episodes import start
from support.estimator_inputs import ARM, FRICTION, MOTION, Recorder, SETTINGS

from metactl_ros.baselines import BASELINES, ESTIMATE, load_baselines, make_classical, truth_of
from metactl_ros.control.estimators import choice
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Health, HEALTHY, Mode
from metactl_ros.errors import ConfigError
from metactl_ros.motion.reference import Hold
from metactl_ros.signals import ArmState, Reference, seconds
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import unguarded, without_warmup
from metactl_ros.sim.task import draw_evaluation

PERIOD_NS = 10_000_000
TRUTH = truth_of(SETTINGS.plant, 0.75, 2.0)
LIMIT_NM = np.array(ARM.limits.effort_nm)
REACH_NM = np.array(ARM.limits.effort_rate_nmps) / SETTINGS.controller.law.rate_hz
POSTURE = np.array([0.3, 0.4])
ESTIMATING = [name for name in BASELINES if name != 'ct_best']
NAMES = pytest.mark.parametrize('name', ESTIMATING)


@cache
def controller_of(name):
    truth = TRUTH if name == 'oracle' else None
    rival = getattr(load_baselines(), name)
    return make_classical(without_warmup(SETTINGS.controller), rival, truth)


BANDWIDTH_RADPS = load_baselines().momentum_observer.estimator.momentum_observer.bandwidth_radps


def with_features(controller, num_extra):
    return replace(controller, context=replace(controller.context, num_extra=num_extra))


def begun(controller):
    loop = ControlLoop(ARM, controller)
    loop.reset(ArmState(0, POSTURE, np.zeros(2)))
    return loop


def holding(loop, policy, tick, goal=POSTURE, payload_kg=0.5, health=HEALTHY):
    """Return the step of an arm at rest."""
    state, wanted = ArmState(tick * PERIOD_NS, POSTURE, np.zeros(2)), Hold(np.array(goal)).at(0.0)
    window = loop.observe(state, wanted, payload_kg)
    return loop.actuate(policy(window), state, wanted, tick * PERIOD_NS, health)


def shown(loop, policy, signals, payload_kg):
    """Return efforts and estimates of a loop that is shown (q, qd, goal), (T, 5, ..., 2)."""
    loop.reset(ArmState(0, signals[0, 0], np.zeros_like(signals[0, 0])))
    found = []
    for k, (q, qd, *goal) in enumerate(signals):
        state, wanted = ArmState(k * PERIOD_NS, q, qd), Reference(*goal)
        window = loop.observe(state, wanted, payload_kg)
        step = loop.actuate(policy(window), state, wanted, k * PERIOD_NS)
        found.append(np.concatenate([step.effort_nm, step.estimate_nm], axis=-1))
    return np.array(found)


def random_signals(num_steps, *lead):
    rng = np.random.default_rng(1)
    walk = np.cumsum(rng.normal(0.0, 0.02, (num_steps, *lead, 2)), axis=0)
    signals = rng.normal(0.0, 0.3, (num_steps, 5, *lead, 2))
    signals[:, 0], signals[:, 2] = walk, walk + 0.1 * signals[:, 2]
    return signals


def test_an_estimate_column_without_an_estimator_is_refused():
    controller, _ = controller_of('momentum_observer')
    with pytest.raises(ConfigError, match='a column `estimate`, but there is no estimator'):
        replace(controller, estimator=None)


def with_margin(controller, rho_nm):
    return replace(controller, lyapunov=replace(controller.lyapunov, rho_nm=rho_nm))


def test_a_margin_without_an_estimate_to_count_on_is_refused():
    controller, _ = controller_of('momentum_observer')
    message = r'rho_nm: is how far an estimate may be off, .* no column `estimate`, found \['
    with pytest.raises(ConfigError, match=message):
        with_margin(SETTINGS.controller, 0.1)
    box = replace(controller.gain_box, feed_forward=())
    with pytest.raises(ConfigError, match=message):  # one that is only looked at is not enough
        replace(with_margin(controller, 0.1), gain_box=box)
    with pytest.raises(ConfigError, match=r'rho_nm: expected 2 entries, one per joint, found 3'):
        with_margin(controller, (0.1, 0.1, 0.1))


def test_an_estimate_that_has_no_weight_is_not_counted_on():
    """The shield of the paper's law does not move because somebody estimates beside it."""
    watched, _ = controller_of('momentum_observer')
    own = {name: getattr(SETTINGS.controller, name) for name in ('gain_box', 'lyapunov')}
    watched = replace(watched, **own)
    plain = without_warmup(SETTINGS.controller)
    signals, found = random_signals(40), []
    for controller in (plain, watched):
        loop, rng = ControlLoop(ARM, controller), np.random.default_rng(0)
        loop.reset(ArmState(0, signals[0, 0], np.zeros(2)))
        for k, (q, qd, *goal) in enumerate(signals):
            state, wanted = ArmState(k * PERIOD_NS, q, qd), Reference(*goal)
            loop.observe(state, wanted, 0.5)
            step = loop.actuate(rng.uniform(-1.0, 1.0, 8), state, wanted, k * PERIOD_NS)
            found.append((step.effort_nm, step.decision.half_space.constant))
    for one, other in zip(found[:40], found[40:], strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize('rho_nm', [0.0, 0.05, (0.11, 0.1)])
def test_the_nominal_gains_pass_whatever_is_estimated_and_whatever_the_margin(rho_nm):
    controller = with_margin(controller_of('ct_integral').controller, rho_nm)
    signals, loop = random_signals(60, 5), ControlLoop(ARM, unguarded(controller))
    loop.reset(ArmState(0, signals[0, 0], np.zeros_like(signals[0, 0])))
    for k, (q, qd, *goal) in enumerate(signals):
        state, wanted = ArmState(k * PERIOD_NS, q, qd), Reference(*goal)
        loop.observe(state, wanted, 0.5)
        action = np.broadcast_to(loop.nominal_action, (5, loop.gain_map.size))
        step = loop.actuate(action, state, wanted, k * PERIOD_NS)
        assert not step.decision.was_moved.any()
    assert np.abs(step.estimate_nm).max() > 0.1


@pytest.mark.parametrize(('num_extra', 'name'), [(1, 'oracle'), (3, 'oracle'), (2, 'ct_best')])
def test_extra_features_are_the_joints_of_an_estimator_or_none(num_extra, name):
    controller, _ = controller_of(name)
    with pytest.raises(ConfigError, match=rf'num_extra: expected one of .*found {num_extra}\.'):
        with_features(controller, num_extra)


@pytest.mark.parametrize('num_extra', [0, 2])
def test_the_extra_features_of_the_context_are_the_estimate(num_extra):
    controller, policy = controller_of('momentum_observer')
    loop = ControlLoop(ARM, with_features(controller, num_extra))
    plant, first = Rk4Arm(ARM, FRICTION, 100.0), MOTION.at(0.0)
    state = plant.reset(start(first.q_rad, first.qd_radps, payload_kg=0.75))
    loop.reset(state)
    estimates = []
    for _ in range(60):
        wanted = MOTION.at(seconds(state.stamp_ns))
        window = loop.observe(state, wanted, 0.6)
        step = loop.actuate(policy(window), state, wanted, state.stamp_ns)
        estimates.append(step.estimate_nm)
        state = plant.step(step.effort_nm)
    assert window.shape == (50, 11 + num_extra)
    np.testing.assert_array_equal(window[:, 11:], np.array(estimates)[10:, :num_extra])
    assert np.abs(estimates).max() > 3.0


def test_twelve_gains_and_thirteen_features_close_the_loop():
    shipped, _ = controller_of('momentum_observer')
    columns = (*SETTINGS.controller.gain_box.feed_forward, ESTIMATE)
    box = replace(shipped.gain_box, feed_forward=columns)
    loop = ControlLoop(ARM, with_features(replace(shipped, gain_box=box), 2))
    plant, first = Rk4Arm(ARM, FRICTION, 100.0), MOTION.at(0.0)
    state = plant.reset(start(first.q_rad, first.qd_radps, payload_kg=0.75))
    loop.reset(state)
    for _ in range(50):
        wanted = MOTION.at(seconds(state.stamp_ns))
        window = loop.observe(state, wanted, 0.75)
        step = loop.actuate(np.full(12, 0.1), state, wanted, state.stamp_ns)
        state = plant.step(step.effort_nm)
        assert step.modes == Mode.NOMINAL
    assert window.shape == (50, 13)
    assert step.decision.gains.theta.shape == (12,)
    assert np.abs(state.q_rad - MOTION.at(0.5).q_rad).max() < 0.1


@NAMES
def test_a_loop_that_is_shown_the_same_twice_gives_the_same_bits_twice(name):
    controller, policy = controller_of(name)
    signals, loop = random_signals(40), ControlLoop(ARM, controller)
    first = shown(loop, policy, signals, 0.5)
    assert np.abs(first[:, 2:]).max() > 0.1
    np.testing.assert_array_equal(first, shown(loop, policy, signals, 0.5))
    np.testing.assert_array_equal(first, shown(ControlLoop(ARM, controller), policy, signals, 0.5))


@NAMES
def test_a_batch_equals_its_arms_one_by_one_when_each_fails_in_its_own_way(name):
    controller, policy = controller_of(name)
    signals, payload_kg = random_signals(50, 4), np.array([0.3, np.nan, 0.9, 2.0])
    signals[20, 0, 1] = np.nan
    signals[25, 1, 2, 0] = 1e9
    signals[35, 1, 0, 1] = 1e5
    signals[30, 3, 3] = np.inf
    together = shown(ControlLoop(ARM, controller), policy, signals, payload_kg)
    for arm in range(4):
        alone = shown(ControlLoop(ARM, controller), policy, signals[:, :, arm], payload_kg[arm])
        np.testing.assert_allclose(together[:, arm], alone, rtol=0, atol=1e-9)


odd = st.sampled_from([np.nan, np.inf, -np.inf, 1e308, -1e308, 1e6, -1e6, 1e5, 5e-324])
numbers = st.floats(-2.0, 2.0) | odd
ticks = st.lists(
    st.tuples(st.integers(-1, 8), st.lists(numbers, min_size=13, max_size=13)),
    min_size=1,
    max_size=12,
)


@NAMES
@hypothesis_settings(max_examples=40)
@given(ticks=ticks)
def test_no_input_makes_an_estimate_that_is_not_finite(name, ticks):
    controller, policy = controller_of(name)
    loop, now_ns = begun(controller), 0
    for advance, values in ticks:
        now_ns = max(now_ns + advance * PERIOD_NS, 0)
        q, qd, *goal, effort, (payload_kg, _) = np.reshape([*values, 0.0], (7, 2))
        state, wanted = ArmState(now_ns, q, qd), Reference(*goal)
        window = loop.observe(state, wanted, payload_kg, effort)
        step = loop.actuate(policy(window), state, wanted, now_ns)
        assert np.all(np.isfinite(window))
        assert np.all(np.abs(step.estimate_nm) <= LIMIT_NM)
        assert np.all(np.abs(step.effort_nm) <= LIMIT_NM)


@pytest.mark.parametrize('bad', [np.nan, np.inf, 1e300])
def test_the_momentum_observer_forgets_a_bad_state_as_fast_as_it_forgets_everything(bad):
    controller, policy = controller_of('momentum_observer')
    signals, loop, found = random_signals(150), ControlLoop(ARM, controller), []
    for value in (signals[30, 1, 0], bad):
        signals[30, 1, 0] = value
        loop.reset(ArmState(0, signals[0, 0], np.zeros(2)))
        estimates = []
        for k, (q, qd, *goal) in enumerate(signals):
            state, wanted = ArmState(k * PERIOD_NS, q, qd), Reference(*goal)
            window = loop.observe(state, wanted, 0.5, np.zeros(2))
            step = loop.actuate(policy(window), state, wanted, k * PERIOD_NS)
            estimates.append(step.estimate_nm)
        found.append(np.array(estimates))
    miss = np.abs(found[1] - found[0]).max(axis=1)
    assert np.all(miss[:30] == 0.0)
    assert miss[30] > 1.0
    assert np.all(
        miss[32:] <= miss[31] * np.exp(-BANDWIDTH_RADPS * 0.01 * np.arange(1, 119)) + 1e-9
    )


@NAMES
def test_a_payload_estimate_that_is_no_number_stops_no_classical_controller_for_good(name):
    controller, policy = controller_of(name)
    loop = begun(replace(controller, modes=replace(controller.modes, recovery_ticks=2)))
    first = holding(loop, policy, 0, payload_kg=np.nan)
    assert first.modes == Mode.FALLBACK
    later = [holding(loop, policy, tick) for tick in range(1, 5)]
    assert later[-1].modes == Mode.NOMINAL


def recording(monkeypatch, answer, warmup_ticks=0):
    """Return a loop, its policy and the estimator in it, which answers the same at any time."""
    recorder = Recorder(answer)
    monkeypatch.setattr(choice, 'make_estimator', lambda *_: recorder)
    controller, policy = controller_of('momentum_observer')
    modes = replace(controller.modes, warmup_ticks=warmup_ticks)
    return begun(replace(controller, modes=modes)), policy, recorder


@pytest.mark.parametrize(
    ('warmup_ticks', 'health', 'mode'),
    [
        (50, HEALTHY, Mode.WARMUP),
        (0, Health(policy_is_on_time=False), Mode.FALLBACK),
        (0, Health(reference_is_valid=False), Mode.STOP),
        (0, HEALTHY, Mode.NOMINAL),
    ],
)
def test_only_nominal_uses_the_estimate_and_learns(monkeypatch, warmup_ticks, health, mode):
    loop, policy, recorder = recording(monkeypatch, [5.0, -3.0], warmup_ticks)
    steps = [holding(loop, policy, tick, health=health) for tick in range(3)]
    is_nominal, held = mode == Mode.NOMINAL, ARM.body().gravity(POSTURE)
    for step in steps:
        assert step.modes == mode
        expected = is_nominal * np.array([5.0, -3.0])
        np.testing.assert_allclose(step.effort_nm - held, expected, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(step.estimate_nm, [5.0, -3.0])
    assert [given.may_learn for given in recorder.inputs] == [False, is_nominal, is_nominal]


def test_an_effort_that_a_limit_cut_is_told_and_is_not_to_be_learnt_from(monkeypatch):
    loop, policy, recorder = recording(monkeypatch, [0.0, 0.0])
    goals = [POSTURE, [1.5, 0.4], POSTURE, POSTURE, POSTURE, POSTURE]
    steps = [holding(loop, policy, tick, goal) for tick, goal in enumerate(goals)]
    is_free = [bool(np.all(step.effort_nm == step.wanted_nm)) for step in steps]
    assert is_free[:2] == [True, False]
    assert is_free[-2:] == [True, True]
    assert [given.may_learn for given in recorder.inputs] == [False, *is_free[:-1]]
    told = [given.effort_nm for given in recorder.inputs]
    np.testing.assert_array_equal(told[1:], [step.effort_nm for step in steps[:-1]])


def test_an_effort_that_is_not_finite_is_a_fault_of_its_arm_only(monkeypatch):
    loop, policy, recorder = recording(monkeypatch, [0.0, 0.0])
    q = np.array([POSTURE, POSTURE])
    loop.reset(ArmState(0, q, np.zeros_like(q)))
    gravity = ARM.body().gravity(POSTURE)
    for k, value in enumerate([np.nan, 0.0]):
        recorder.answer = np.array([[value, 0.0], [0.0, 0.0]])
        state, wanted = ArmState(k * PERIOD_NS, q, np.zeros_like(q)), Hold(q).at(0.0)
        window = loop.observe(state, wanted, 0.5)
        step = loop.actuate(policy(window), state, wanted, k * PERIOD_NS)
        assert step.modes.tolist() == [Mode.FAULT, Mode.NOMINAL]
        expected = [np.maximum(gravity - (k + 1) * REACH_NM, 0.0), gravity]
        np.testing.assert_allclose(step.effort_nm, expected, rtol=0, atol=1e-12)


def test_a_loop_passes_a_measured_effort_on():
    controller, _ = controller_of('momentum_observer')
    measured, here = np.array([20.0, 9.0]), Hold(POSTURE).at(0.0)
    found = []
    for told in (None, measured):
        loop = begun(controller)
        for tick in range(2):
            state = ArmState(tick * PERIOD_NS, POSTURE, np.zeros(2))
            loop.observe(state, here, 0.5, told)
        found.append(loop.actuate(loop.nominal_action, state, here, PERIOD_NS).estimate_nm)
    share, gravity = (
        -np.expm1(-BANDWIDTH_RADPS * 0.01),
        ARM.body().gravity(POSTURE),
    )
    np.testing.assert_allclose(found[0], [0.0, 0.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[1], share * (measured - gravity), rtol=1e-12)


# Not Slotine and Li's: at tuned rates one such sample throws the arm out of its limits, to STOP.
@pytest.mark.parametrize('name', [name for name in ESTIMATING if 'slotine' not in name])
@pytest.mark.parametrize('glitch_radps', [5.0, 1e5])
def test_one_wrong_velocity_is_forgotten_within_five_seconds(name, glitch_radps):
    """The reference waits for an arm that stops, as that of the node does."""
    controller, policy = controller_of(name)
    late = []
    for wrong_radps in (0.0, glitch_radps):
        plant, loop = Rk4Arm(ARM, FRICTION, 100.0), ControlLoop(ARM, unguarded(controller))
        episode = draw_evaluation(SETTINGS.plant.task, 3, 0.75, 1, 2.0).of_arm(0)
        state = plant.reset(episode.start)
        loop.reset(state)
        errors, num_followed = [], 0
        for k in range(800):
            qd = state.qd_radps + (wrong_radps if k == 100 else 0.0)
            seen = ArmState(state.stamp_ns, state.q_rad, qd)
            wanted = episode.reference.at(num_followed / 100)
            window = loop.observe(seen, wanted, 0.75)
            step = loop.actuate(policy(window), seen, wanted, k * PERIOD_NS)
            state = plant.step(step.effort_nm)
            num_followed += int(step.modes == Mode.NOMINAL)
            errors.append(np.linalg.norm(wanted.q_rad - state.q_rad))
        late.append(np.mean(errors[600:]))
    assert late[1] < 1.2 * late[0] + 1e-3
