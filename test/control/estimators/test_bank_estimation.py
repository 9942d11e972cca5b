# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The observer bank within the control loop: tokens, schedules, states that are lost or late."""

from dataclasses import replace

import numpy as np
import pytest

from metactl_ros.baselines import ConstantPolicy, estimating_box, load_learned
from metactl_ros.control.estimators.bank import BankSettings
from metactl_ros.control.estimators.bank_estimation import (
    BankEstimation,
    MOST_LOGIT,
    schedule_of,
    schedule_size,
    token_size,
)
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.law import TrackingState
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Health, Mode
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_file, load_settings, make_plant, shipped_policy
from metactl_ros.signals import ArmState, GAP_PERIODS, Reference, seconds
from metactl_ros.sim.rollout import run_episode, unguarded, without_warmup
from metactl_ros.sim.task import draw_evaluation

SETTINGS = load_settings()
ARM, PERIOD_NS = SETTINGS.arm, 10_000_000
BANK = load_file(BankSettings, None, 'bank.yaml')
K, N = BANK.num_delays, 2
SCHEDULED = replace(BANK, is_scheduled=True)
SIZE = schedule_size(K, N)
YES, NO = np.array(True), np.array(False)
NOTHING = np.zeros(0)


def controller_with(bank):
    controller = SETTINGS.controller
    num_extra = N * token_size(K) if bank.is_scheduled else 0
    return replace(
        controller,
        gain_box=estimating_box(controller),
        estimator=EstimatorSettings(bank=bank),
        context=replace(controller.context, num_extra=num_extra),
    )


def at(q, qd=(0.0, 0.0)):
    return TrackingState(np.array(q), np.array(qd), *np.zeros((3, 2)))


def begun(bank=BANK, effort_nm=(0.0, 0.0)):
    estimation = BankEstimation(bank, ARM, PERIOD_NS)
    estimation.reset(np.array(effort_nm))
    return estimation


def ride(estimation, num_ticks, *, lost=(), schedule=NOTHING):
    """Let the model fall from rest under varying efforts and show what is not lost; return it."""
    body, q, qd = ARM.body(), np.array([0.3, -0.5]), np.zeros(2)
    for tick in range(num_ticks):
        if tick not in lost:
            estimation.observe(tick * PERIOD_NS, at(q, qd), YES, 0.0, None)
        found = estimation.estimate(at(q, qd), schedule)
        effort_nm = body.gravity(q) + np.array([np.sin(tick), np.cos(2.0 * tick)])
        estimation.record_effort(effort_nm, YES, YES)
        qdd = body.forward_dynamics(q, qd, effort_nm)
        q, qd = q + 0.01 * qd + 0.5e-4 * qdd, qd + 0.01 * qdd
    return found, (q - 0.01 * qd, qd)


def test_an_action_schedules_between_the_ends_of_every_range():
    low, high = (schedule_of(np.full(SIZE, end), K, N) for end in (-1.0, 1.0))
    assert low.logits.tolist() == [-MOST_LOGIT] * K
    assert high.logits.tolist() == [MOST_LOGIT] * K
    assert low.correction.tolist() == [[0.0] * 6] * N
    assert high.correction.tolist() == [[1.0] * 6] * N
    for name, least, largest in (('drift', 1e-5, 1.0), ('noise', 1e-2, 1e3), ('beta', 0.0, 1.0)):
        np.testing.assert_allclose(getattr(low, name), [least] * N)
        np.testing.assert_allclose(getattr(high, name), [largest] * N)
    assert low.payload_drift == pytest.approx(1e-8)
    assert high.payload_drift == pytest.approx(1e-2)


def test_each_entry_of_an_action_is_of_one_kind_and_joint():
    action = np.zeros(SIZE)
    action[K + 9 + 7] = 1.0  # noise of the second joint
    found = schedule_of(action, K, N)
    np.testing.assert_allclose(found.noise, [10.0**0.5, 1e3])
    np.testing.assert_allclose(found.drift, [10.0**-2.5] * N)


def test_a_scheduled_bank_needs_its_tokens_in_the_context():
    controller = controller_with(SCHEDULED)
    with pytest.raises(ConfigError, match=r'context.num_extra: expected one of \(94,\)'):
        replace(controller, context=replace(controller.context, num_extra=0))
    assert ControlLoop(ARM, controller).action_size == 8 + SIZE
    assert ControlLoop(ARM, controller_with(BANK)).action_size == 8


def test_before_anything_was_seen_the_measured_state_is_all_there_is():
    here = at([0.3, -0.4], [1.0, 2.0])
    found = begun().estimate(here, NOTHING)
    assert found.q is here.q
    assert found.qd is here.qd
    assert not found.d_nm.any()
    assert found.payload_kg == 0.0


def test_a_state_that_is_lost_or_two_at_once_shift_no_effort():
    """Each period takes its own effort, so that the bank still knows where the arm is."""
    whole, truth = ride(begun(), 60)
    holed, _ = ride(begun(), 60, lost=(20, 31, 32, 45))
    for found in (whole, holed):
        np.testing.assert_allclose(found.q, truth[0], atol=2e-3)
    np.testing.assert_allclose(holed.q, whole.q, atol=1e-3)


def test_without_a_new_state_the_model_goes_on_under_what_was_sent():
    """As far as there were ticks, and no further."""
    estimation = begun()
    last, (q, qd) = ride(estimation, 60)
    ahead = estimation.estimate(at([9.0, 9.0]), NOTHING)
    np.testing.assert_allclose(ahead.q, q + 0.01 * qd, atol=2e-3)
    assert np.abs(ahead.qd - last.qd).max() > 1e-3
    assert estimation.estimate(at([9.0, 9.0]), NOTHING) is ahead
    estimation.record_effort(np.zeros(2), YES, YES)
    assert estimation.estimate(at([9.0, 9.0]), NOTHING) is not ahead


def shaken(estimation, *, is_consistent, num_ticks=40):
    """Show an arm that swings as no effort explains, or whose velocities are noise alone."""
    noise = np.random.default_rng(1).normal(0.0, 0.1, (num_ticks, 2))
    fits = []
    for tick in range(num_ticks):
        angle = 40.0 * 0.01 * tick
        q, qd = np.full(2, 0.01 * np.sin(angle)), np.full(2, 0.4 * np.cos(angle))
        here = at(q, qd) if is_consistent else at(np.zeros(2), noise[tick])
        estimation.observe(tick * PERIOD_NS, here, YES, 0.0, None)
        fits.append(bool(estimation.fits))
        estimation.estimate(here, NOTHING)
        estimation.record_effort(ARM.body().gravity(here.q), YES, YES)
    return fits


LATEST = replace(BANK, delay_logits=(0.0,) * (K - 1) + (8.0,), sharpness=0.0)
"""Believes in the longest delay, come what may."""


def test_an_arm_that_swings_as_no_delay_explains_does_not_fit_but_noise_does():
    assert not shaken(begun(LATEST), is_consistent=True)[-1]
    assert all(shaken(begun(LATEST), is_consistent=False))


def test_where_a_shorter_delay_is_known_a_surprise_is_no_misfit():
    """Such as motors that give less than they are sent: low gains would lose the arm."""
    known = replace(LATEST, delay_logits=(8.0,) + (0.0,) * (K - 1))
    assert all(shaken(begun(known), is_consistent=True))


def test_an_arm_that_does_what_its_model_says_fits_and_misses_nothing():
    estimation = begun()
    ride(estimation, 60)
    assert estimation.fits
    assert np.abs(estimation.missed_nm).max() < 0.5
    shaken(estimation, is_consistent=True)
    estimation.reset(np.zeros(2))
    assert estimation.fits
    assert not estimation.missed_nm.any()


def test_where_no_hypothesis_fits_low_gains_act_whatever_is_proposed():
    loop = ControlLoop(ARM, without_warmup(unguarded(controller_with(LATEST))), 'count')
    state = ArmState(0, np.zeros(2), np.zeros(2))
    stiff, still = np.ones(8), Reference(*np.zeros((3, 2)))
    loop.reset(state)
    for tick in range(40):
        angle = 40.0 * 0.01 * tick
        q, qd = np.full(2, 0.01 * np.sin(angle)), np.full(2, 0.4 * np.cos(angle))
        state = ArmState(tick * PERIOD_NS, q, qd)
        loop.observe(state, still, 0.0)
        step = loop.actuate(stiff, state, still, state.stamp_ns)
        theta = step.decision.gains.theta
        if tick == 0:
            assert loop.fits
            assert step.action is stiff
            np.testing.assert_allclose(theta, loop.gain_map.upper)
    assert not loop.fits
    assert step.action.tolist() == [*[-1.0] * 6, 1.0, 1.0]  # what is recorded was weighed
    lower = loop.gain_map.lower
    np.testing.assert_allclose(theta, [*lower[:6], 1.0, 1.0])


@pytest.mark.parametrize(
    ('noise_radps', 'least', 'most'), [(0.0, 0.9, 1.0), (0.1, 0.0, 0.5)], ids=['ideal', 'noisy']
)
def test_the_loop_counts_how_often_its_estimate_is_within_its_margin(noise_radps, least, most):
    bundle = load_learned(shipped_policy(), ARM, SETTINGS.controller)
    sensing = replace(SETTINGS.plant.sensing, velocity_noise_radps=noise_radps)
    world = replace(SETTINGS, plant=replace(SETTINGS.plant, sensing=sensing))
    plant = make_plant('rk4', world)
    episode = draw_evaluation(world.plant.task, 5, 0.75, 1, 2.0).of_arm(0)
    loop = ControlLoop(ARM, without_warmup(bundle.controller))
    run_episode(plant, episode, bundle.policy, loop, 500)
    assert least <= loop.coverage <= most
    loop.forget_context()
    assert loop.coverage == 1.0


def test_without_a_margin_nothing_is_counted():
    loop = ControlLoop(ARM, without_warmup(controller_with(BANK)))
    episode = draw_evaluation(SETTINGS.plant.task, 5, 0.75, 1, 2.0).of_arm(0)
    policy = ConstantPolicy(loop.nominal_action)
    run_episode(make_plant('rk4', SETTINGS), episode, policy, loop, 50)
    assert loop.coverage == 1.0


def test_states_of_an_arm_that_only_begins_are_not_looked_at():
    """While brakes open it does what no effort explains, and the window would remember it."""
    estimation = BankEstimation(BANK, ARM, PERIOD_NS, num_skipped=3)
    for _ in range(2):
        estimation.reset(np.zeros(2))
        for tick in range(6):
            here = at(np.full(2, 0.1 * tick))
            estimation.observe(tick * PERIOD_NS, here, YES, 0.0, None)
            assert estimation.features.any() == (tick >= 3)
            found = estimation.estimate(here, NOTHING)
            assert (found.q is here.q) == (tick < 3)


@pytest.mark.parametrize(('adapted', 'num_skipped'), [(without_warmup, 0), (lambda c: c, 10)])
def test_a_fifth_of_the_warm_up_passes_before_the_bank_looks(adapted, num_skipped):
    loop = ControlLoop(ARM, adapted(controller_with(SCHEDULED)))
    loop.reset(ArmState(0, np.zeros(2), np.zeros(2)))
    still, first = Reference(*np.zeros((3, 2))), None
    for tick in range(15):
        state = ArmState(tick * PERIOD_NS, np.zeros(2), np.zeros(2))
        row = loop.observe(state, still, 0.0)[-1]
        loop.actuate(loop.nominal_action, state, still, state.stamp_ns)
        if first is None and row[11:].any():
            first = tick
    assert first == num_skipped


def test_before_a_first_state_nothing_goes_on():
    estimation = begun()
    estimation.record_effort(np.zeros(2), YES, YES)
    here = at([0.3, -0.4])
    assert estimation.estimate(here, NOTHING).q is here.q


def test_two_states_after_one_tick_are_both_used():
    """The first of them is corrected by the last schedule, as nobody was asked about it."""
    both, last = begun(), begun()
    for estimation in (both, last):
        ride(estimation, 10)
        estimation.record_effort(np.zeros(2), YES, YES)
    both.observe(10 * PERIOD_NS, at([0.31, -0.49]), YES, 0.0, None)
    for estimation in (both, last):
        estimation.observe(11 * PERIOD_NS, at([0.32, -0.48]), YES, 0.0, None)
    here = at([0.32, -0.48])
    one, other = both.estimate(here, NOTHING), last.estimate(here, NOTHING)
    assert np.abs(one.q - other.q).max() > 1e-6


@pytest.mark.parametrize('ticks', [0, -3, 0.4])
def test_a_state_of_a_period_that_has_one_changes_nothing(ticks):
    estimation = begun()
    ride(estimation, 10)
    now = estimation.estimate(at([0.3, 0.3]), NOTHING)
    estimation.observe(round((9 + ticks) * PERIOD_NS), at([1.0, 1.0]), YES, 0.0, None)
    assert estimation.estimate(at([0.3, 0.3]), NOTHING) is now


@pytest.mark.parametrize(('ticks', 'is_anew'), [(GAP_PERIODS, False), (GAP_PERIODS + 1, True)])
def test_after_a_gap_it_begins_anew(ticks, is_anew):
    estimation = begun()
    ride(estimation, 50)
    here = at([0.9, -0.9])
    estimation.observe((49 + ticks) * PERIOD_NS, here, YES, 0.0, None)
    tokens = estimation.features.reshape(N, -1)[:, :-4]  # none with the first state
    assert (not tokens.any()) == is_anew


@pytest.mark.parametrize('payload_kg', [np.nan, np.inf])
def test_a_payload_that_is_no_number_is_none(payload_kg):
    estimation = begun()
    estimation.observe(0, at([0.3, -0.5]), YES, payload_kg, None)
    assert estimation.estimate(at([0.3, -0.5]), NOTHING).payload_kg == 0.0


def test_the_payload_begins_as_it_is_told():
    estimation = begun()
    estimation.observe(0, at([0.3, -0.5]), YES, 1.2, None)
    assert estimation.estimate(at([0.3, -0.5]), NOTHING).payload_kg == pytest.approx(1.2)


def test_a_state_that_is_not_to_be_believed_is_replaced_by_the_last():
    spiked, calm = begun(), begun()
    for estimation, q, is_usable in ((spiked, 50.0, NO), (calm, 0.3, YES)):
        ride(estimation, 30)
        last = at([0.3, -0.5])
        estimation.observe(30 * PERIOD_NS, last, YES, 0.0, None)
        estimation.estimate(last, NOTHING)
        estimation.observe(31 * PERIOD_NS, at([q, -0.5]), is_usable, 0.0, None)
    found = [estimation.estimate(at([0.3, -0.5]), NOTHING) for estimation in (spiked, calm)]
    np.testing.assert_array_equal(found[0].q, found[1].q)


def test_what_does_not_act_teaches_nothing():
    """An arm in FAULT is held by its brake, not by what is sent."""
    learned, kept = begun(), begun()
    for estimation in (learned, kept):
        ride(estimation, 60)
    before, changes = kept.estimate(at([0.3, -0.5]), NOTHING).payload_kg, []
    for estimation, acts in ((learned, YES), (kept, NO)):
        for tick in range(60, 80):
            estimation.record_effort(np.array([80.0, 20.0]), acts, acts)
            estimation.observe(tick * PERIOD_NS, at([0.3, -0.5]), YES, 0.0, None)
            found = estimation.estimate(at([0.3, -0.5]), NOTHING)
        changes.append(abs(found.payload_kg - before))
    assert changes[1] < 0.2 * changes[0]


def test_an_effort_that_is_told_takes_the_place_of_what_was_sent():
    sent, told, other = begun(), begun(), begun()
    for estimation, given in ((sent, None), (told, np.array([5.0, 1.0])), (other, np.zeros(2))):
        estimation.observe(0, at([0.3, -0.5]), YES, 0.0, None)
        estimation.estimate(at([0.3, -0.5]), NOTHING)
        estimation.record_effort(np.array([5.0, 1.0]), YES, YES)
        estimation.observe(PERIOD_NS, at([0.3, -0.5]), YES, 0.0, given)
    found = [x.estimate(at([0.3, -0.5]), NOTHING).qd for x in (sent, told, other)]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 1e-3


@pytest.mark.parametrize('bad', [np.nan, np.inf, 1e9])
def test_a_schedule_that_is_no_number_or_beyond_its_range_does_no_harm(bad):
    found, truth = ride(begun(SCHEDULED), 60, schedule=np.full(SIZE, bad))
    assert np.isfinite(np.concatenate((found.q, found.qd, found.d_nm))).all()
    np.testing.assert_allclose(found.q, truth[0], atol=0.2)


def test_tokens_are_zero_at_first_and_tell_of_each_joint_from_the_second_state_on():
    estimation = begun(SCHEDULED)
    ride(estimation, 1, schedule=np.zeros(SIZE))
    tokens = estimation.features.reshape(N, -1)
    assert not tokens[:, :-4].any()
    ride_on = begun(SCHEDULED)
    ride(ride_on, 2, schedule=np.zeros(SIZE))
    tokens = ride_on.features.reshape(N, -1)
    assert tokens[:, -5].tolist() == [1.0, 1.0]  # the last before what the joint is
    assert np.abs(tokens[:, :3]).max() > 0.0
    half = 3 + 3 * K
    np.testing.assert_array_equal(tokens[:, half : 2 * half], np.abs(tokens[:, :half]))


def test_the_loop_acts_on_the_estimated_state_in_nominal_alone():
    controller = without_warmup(controller_with(BANK))
    sensing = replace(SETTINGS.plant.sensing, transport_delay_s=0.02)
    plant = make_plant('rk4', replace(SETTINGS, plant=replace(SETTINGS.plant, sensing=sensing)))
    episode = draw_evaluation(SETTINGS.plant.task, 3, 0.75, 1, 2.0).of_arm(0)
    loop = ControlLoop(ARM, controller)
    action = loop.gain_map.action(np.array([30.0, 30.0, 3.0, 3.0, 200.0, 200.0, 1.0, 1.0]))
    state = plant.reset(episode.start)
    loop.reset(state)
    errors = []
    for tick in range(400):
        reference = episode.reference.at(seconds(state.stamp_ns))
        loop.observe(state, reference, episode.payload_estimate_kg)
        health = Health(policy_is_on_time=tick < 300)
        step = loop.actuate(action, state, reference, state.stamp_ns, health)
        truth = plant.true_q_rad
        if tick >= 150:
            errors.append(
                [np.abs(step.estimate.q - truth).max(), np.abs(state.q_rad - truth).max()]
            )
        if tick in (299, 300):
            assert (step.modes == Mode.NOMINAL) == (tick == 299)
            hold = ARM.body(float(step.estimate.payload_kg)).gravity(step.estimate.q)
            bare = ARM.body().gravity(state.q_rad)
            assert np.abs(hold - bare).max() > 0.5  # or the two could not be told apart
        state = plant.step(step.effort_nm)
    estimated, measured = np.array(errors)[:150].mean(axis=0)
    assert estimated < 0.25 * measured
