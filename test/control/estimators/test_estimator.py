# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What an estimator is told within a control loop, and which constants are refused."""

from dataclasses import replace

import numpy as np
import pytest
from support.estimator_inputs import ARM, Recorder, SETTINGS

from metactl_ros.baselines import load_baselines, truth_of
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import IntegralSettings, MomentumObserverSettings
from metactl_ros.control.estimators.estimator import Estimation
from metactl_ros.control.law import tracking_error, TrackingState
from metactl_ros.errors import ConfigError
from metactl_ros.signals import GAP_PERIODS

PERIOD_NS = 10_000_000
TRUTH = truth_of(SETTINGS.plant, 0.75, 2.0)

NOWHERE = TrackingState(*np.zeros((5, 2)))
YES, NO = np.array(True), np.array(False)


def estimation_of(recorder, effort_nm=(7.0, 3.0)):
    law = SETTINGS.controller.law
    estimation = Estimation(recorder, law, ARM.body(), ARM.limits.effort_nm, PERIOD_NS)
    estimation.reset(np.array(effort_nm))
    return estimation


def look(estimation, tick, effort_nm=None, payload_kg=0.5):
    told = None if effort_nm is None else np.array(effort_nm)
    estimation.observe(round(tick * PERIOD_NS), NOWHERE, YES, payload_kg, told)


def record(estimation, effort_nm, may_learn=YES):
    estimation.record_effort(np.array(effort_nm), may_learn, YES)


def test_an_estimator_is_told_the_mean_effort_since_the_state_before():
    recorder = Recorder()
    estimation = estimation_of(recorder)
    look(estimation, 0)
    record(estimation, [1.0, 2.0])
    look(estimation, 1)
    for efforts in ([3.0, 4.0], [5.0, -8.0]):
        record(estimation, efforts)
    look(estimation, 3)
    look(estimation, 3.5)  # nothing new was sent: the last effort still acts
    found = [(given.passed_s, list(given.effort_nm)) for given in recorder.inputs]
    assert found == [
        (0.0, [7.0, 3.0]),
        (0.01, [1.0, 2.0]),
        (0.02, [4.0, -2.0]),
        (0.005, [5.0, -8.0]),
    ]


def test_an_estimator_is_told_of_the_state_its_goal_its_time_and_whether_it_may_learn():
    recorder = Recorder()
    estimation = estimation_of(recorder)
    here = TrackingState(*(np.array([0.1 * k, 0.1 * k + 0.05]) for k in range(5)))
    error = tracking_error(SETTINGS.controller.law, here)
    posture = ARM.body().at(here.q, here.qd)
    for tick, may_learn in ((7, YES), (8, NO), (9, YES)):
        estimation.observe(tick * PERIOD_NS, here, YES, 0.6, None)
        record(estimation, [0.0, 0.0], may_learn)
    estimation.observe(10 * PERIOD_NS, here, YES, 0.6, None)
    assert [given.may_learn for given in recorder.inputs] == [False, True, False, True]
    assert [given.time_s for given in recorder.inputs] == [0.07, 0.08, 0.09, 0.1]
    for given in recorder.inputs:
        assert given.payload_estimate_kg == 0.6
        np.testing.assert_array_equal(given.posture.bias, posture.bias)
        for told, expected in ((given.at, here), (given.error, error)):
            np.testing.assert_array_equal(told, expected)


def test_of_two_states_with_one_stamp_it_sees_the_first():
    recorder = Recorder([1.0, 2.0])
    estimation = estimation_of(recorder)
    look(estimation, 0)
    record(estimation, [1.0, 1.0])
    look(estimation, 2)
    recorder.answer = np.array([9.0, 9.0])
    record(estimation, [3.0, 3.0])
    for tick in (2, 1, 0):
        look(estimation, tick)
    assert len(recorder.inputs) == 2
    assert estimation.estimate_nm.tolist() == [1.0, 2.0]
    look(estimation, 3)
    assert list(recorder.inputs[-1].effort_nm) == [3.0, 3.0]  # not forgotten on the way


@pytest.mark.parametrize(('ticks', 'resets'), [(GAP_PERIODS, 0), (GAP_PERIODS + 0.01, 1)])
def test_after_a_gap_of_more_than_five_periods_it_begins_anew(ticks, resets):
    recorder = Recorder()
    estimation = estimation_of(recorder)
    look(estimation, 0)
    before = recorder.num_resets
    look(estimation, ticks)
    assert recorder.num_resets == before + resets
    assert recorder.inputs[-1].passed_s == (0.0 if resets else 0.05)
    look(estimation, ticks + 1)
    assert recorder.num_resets == before + resets
    assert recorder.inputs[-1].passed_s == 0.01


def test_a_reset_begins_anew_with_no_estimate():
    recorder = Recorder([1.0, 2.0])
    estimation = estimation_of(recorder)
    look(estimation, 5)
    record(estimation, [1.0, 1.0])
    before = recorder.num_resets
    estimation.reset(np.array([4.0, 5.0]))
    assert estimation.estimate_nm.tolist() == [0.0, 0.0]
    assert recorder.num_resets == before + 1
    look(estimation, 0)
    last = recorder.inputs[-1]
    assert (last.passed_s, list(last.effort_nm), last.may_learn) == (0.0, [4.0, 5.0], False)


@pytest.mark.parametrize(
    ('answer', 'kept'),
    [([1e3, -1e3], [150.0, -60.0]), ([-151.0, 61.0], [-150.0, 60.0]), ([3.0, -4.0], [3.0, -4.0])],
)
def test_an_estimate_is_never_larger_than_the_motors_are_strong(answer, kept):
    estimation = estimation_of(Recorder(answer))
    look(estimation, 0)
    assert estimation.estimate_nm.tolist() == kept


@pytest.mark.parametrize(
    ('told', 'believed'),
    [
        ([2.0, 3.0], [2.0, 3.0]),
        ([1e3, -1e308], [150.0, -60.0]),
        ([np.nan, 3.0], [10.0, 20.0]),
        ([2.0, np.nan], [10.0, 20.0]),
    ],
)
def test_an_effort_that_was_measured_counts_for_that_which_was_sent(told, believed):
    recorder = Recorder()
    estimation = estimation_of(recorder)
    look(estimation, 0)
    record(estimation, [10.0, 20.0])
    look(estimation, 1, told)
    assert list(recorder.inputs[-1].effort_nm) == believed


@pytest.mark.parametrize('payload_kg', [np.nan, np.inf, np.array(np.nan)])
def test_a_payload_estimate_that_is_no_number_is_none(payload_kg):
    recorder = Recorder()
    look(estimation_of(recorder), 0, payload_kg=payload_kg)
    assert recorder.inputs[0].payload_estimate_kg == 0.0


def test_efforts_that_nobody_sees_take_no_room():
    estimation = estimation_of(Recorder())
    look(estimation, 0)

    def room():
        return sum(
            np.size(x) for x in vars(estimation).values() if isinstance(x, np.ndarray | list)
        )

    before = room()
    for _ in range(100):
        record(estimation, [1.0, 1.0], NO)
    assert room() <= before


SLOTINE_LI = load_baselines().slotine_li_memory.estimator.slotine_li
LUGRE = load_baselines().lugre_observer.estimator.lugre_observer
FIELDS = {
    IntegralSettings(rate_per_s2=1.0): ['rate_per_s2'],
    MomentumObserverSettings(bandwidth_radps=1.0): ['bandwidth_radps'],
    SLOTINE_LI: [
        'payload_rate',
        'coulomb_rate',
        'viscous_rate',
        'memory_rate',
        'payload_most_kg',
        'coulomb_most_nm',
        'viscous_most_nmsprad',
        'memory_most_nmprad',
    ],
    LUGRE: [
        'stiffness_nmprad',
        'damping_nmsprad',
        'coulomb_nm',
        'static_nm',
        'stribeck_velocity_radps',
        'viscous_nmsprad',
        'correction',
    ],
    TRUTH: [
        'payload_kg',
        'tau_z_s',
        'payload_step_at_s',
        'tau_z_drift_to_s',
        'tau_z_drift_over_s',
    ],
}
MAY_BE_ZERO = {
    *('payload_rate', 'coulomb_rate', 'viscous_rate', 'memory_rate'),
    *('damping_nmsprad', 'viscous_nmsprad', 'correction', 'payload_kg', 'payload_step_at_s'),
}


@pytest.mark.parametrize('value', [-1.0, np.nan, np.inf, 0.0])
@pytest.mark.parametrize(
    ('shipped', 'name'), [(shipped, name) for shipped, names in FIELDS.items() for name in names]
)
def test_constants_are_refused_unless_they_are_positive_or_may_be_zero(shipped, name, value):
    if value == 0.0 and name in MAY_BE_ZERO:
        assert getattr(replace(shipped, **{name: 0.0}), name) == 0.0
        return
    with pytest.raises(ConfigError, match=rf'{type(shipped).__name__}\.{name}: expected finite'):
        replace(shipped, **{name: value})


def test_a_horizon_of_zero_is_refused():
    with pytest.raises(
        ConfigError, match=r'SlotineLiSettings\.memory_horizons_s: expected finite'
    ):
        replace(SLOTINE_LI, memory_horizons_s=(2.0, 0.0))


def test_an_estimator_is_one_of_its_kinds():
    names = r"\['integral', 'momentum_observer', .*, 'oracle', 'bank'\]"
    with pytest.raises(ConfigError, match=rf'expected one of {names}, found \[\]'):
        EstimatorSettings()
    with pytest.raises(ConfigError, match=r"found \['integral', 'oracle'\]"):
        EstimatorSettings(integral=IntegralSettings(rate_per_s2=1.0), oracle=TRUTH)
