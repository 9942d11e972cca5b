# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The second opinion on an arm that is guided by hand."""

from dataclasses import replace

import numpy as np
import pytest
from support.guided_arms import ARMS, GuidedArm
from support.tick_logs import ARM, Day, log_of, SETTINGS

from metactl_ros.baselines import load_classical
from metactl_ros.check.certificates import check_certificates
from metactl_ros.check.guided_effort import guided_effort, guided_ticks
from metactl_ros.check.matrix_law import chain_of
from metactl_ros.control.guiding import GuidingLaw
from metactl_ros.control.modes import Mode
from metactl_ros.replay.recompute import GUIDED, reproduce, summarise, tick_counts
from metactl_ros.sim.rollout import unguarded

CONTROLLER, POLICY = load_classical('gravity_compensation', SETTINGS.controller, None, 0.0)


UNGUARDED = unguarded(CONTROLLER)
"""As that of a day is, which the guard would end."""


def guided_day():
    day = Day(POLICY, controller=CONTROLLER)
    day.controller.reference = None
    day.go(150)
    return day


@pytest.fixture(scope='module')
def log():
    """Return the log of a bad day, with a policy that fails while the arm is still guided."""
    day = guided_day()
    day.is_mute = True
    day.go(5)
    day.is_mute = False
    day.go(60)
    return log_of(day.bad().ticks)


@pytest.fixture(scope='module')
def held():
    """Return the log of a day on which the arm is guided, held and guided again, and done anew."""
    day = guided_day()
    day.requests.is_enabled = False
    day.go(40)
    day.requests.is_enabled = True
    day.go(150)
    log = log_of(day.ticks)
    return log, reproduce(log, ARM, UNGUARDED, POLICY)


def found_in(log, controller=CONTROLLER):
    return {violation.what for violation in check_certificates(log, ARM, controller)}


def test_a_run_through_every_mode_is_sound(log):
    assert set(log.shield['mode']) == set(Mode)
    assert found_in(log) == set()


def test_a_run_is_computed_again_to_the_bit(held):
    log, again = held
    assert set(log.shield['mode']) == {Mode.WARMUP, Mode.NOMINAL, Mode.FALLBACK, Mode.STOP}
    assert again.first_difference is None
    assert again.is_compared.all()


def test_ticks_that_were_guided_count_as_not_certified(held):
    log, again = held
    is_guided, none = guided_ticks(log, CONTROLLER), np.zeros(len(log.now_ns), dtype=bool)
    counts = tick_counts(log, again, none, is_guided)
    assert counts['not_certified'][GUIDED] == np.sum(log.shield['mode'] < Mode.STOP)
    assert counts['certified'] == np.sum(log.shield['mode'] >= Mode.STOP) > 10
    assert not guided_ticks(log, SETTINGS.controller).any()


def test_of_what_followed_nothing_there_is_no_tracking_error(held):
    log, _ = held
    assert set(summarise(log, follows=False)['rmse_rad'].values()) == {None}
    assert summarise(log, follows=True)['rmse_rad']['total'] is not None


@pytest.mark.parametrize(
    ('name', 'what'), [('wanted_nm', 'wanted'), ('effort_nm', 'effort'), ('q_rad', 'wanted')]
)
def test_another_number_is_found(log, name, what):
    tick = int(np.flatnonzero(log.shield['mode'] == Mode.NOMINAL)[20])
    values = getattr(log, name).copy()
    values[tick, 1] += 1e-3
    assert what in found_in(replace(log, **{name: values}))


def test_a_run_above_the_speed_limit_must_have_stopped(log):
    fastest = np.abs(log.qd_radps[guided_ticks(log, CONTROLLER)]).max()
    slow = replace(CONTROLLER.guiding, speed_limit_radps=float(0.5 * fastest))
    assert 'mode' in found_in(log, replace(CONTROLLER, guiding=slow))


def test_what_was_guided_is_not_sound_for_a_controller_that_follows(log):
    assert {'wanted', 'effort'} <= found_in(log, SETTINGS.controller)


@pytest.mark.parametrize('name', ARMS)
def test_both_programs_compute_the_same_torque(name, log):
    if name != 'two_link':
        pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    arm, rng = GuidedArm(name), np.random.default_rng(4)
    size = (50, len(arm.effort_nm))
    q = rng.uniform(arm.arm.limits.lower_rad, arm.arm.limits.upper_rad, size)
    qd, kg = rng.uniform(-1.0, 1.0, size), rng.uniform(0.0, arm.payload_kg, 50)
    shield = {'mode': np.zeros(50), 'payload_estimate_kg': kg}
    seen = replace(log, now_ns=np.arange(50), q_rad=q, qd_radps=qd, shield=shield)
    second = guided_effort(seen, arm.arm, arm.controller, chain_of(arm.arm))
    law = GuidingLaw(arm.guiding, arm.arm, 0.01)
    for k in range(50):
        bare, loaded = (arm.arm.body(p).at(q[k], qd[k]) for p in (0.0, float(kg[k])))
        torque = law.torque(bare, loaded.gravity, q[k], qd[k])
        assert (np.abs(second.effort.value[k] - torque) <= 1e-10 * second.effort.size[k]).all()
