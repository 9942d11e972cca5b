# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The observer bank on simulated arms, with the schedule of its settings."""

from dataclasses import replace

import numpy as np
import pytest
from support import three_joints
from support.episodes import start

from metactl_ros.control.estimators.bank import (
    BankSettings,
    BOUNDS,
    features,
    implicit_share,
    ObserverBank,
    PULL_Q_RAD,
    PULL_V_RADPS,
)
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_settings, make_plant

SETTINGS = load_settings()
ARM, DT_S = SETTINGS.arm, 0.01
BANK = BankSettings(
    num_delays=5,
    payload_max_kg=3.0,
    prior_mean=(0.1, 0.5, 0.2, 0.15, 0.5, 0.5, 0.0),
    prior_std=(0.3, 0.6, 0.3, 0.2, 1.0, 1.0, 2.0),
    payload_std=0.3,
    drift=(1e-5,) * 6,
    correction=(0.85, 0.03, 0.4, 0.4, 0.2, 0.1),
    offset_drift=1e-4,
    noise=1.0,
    payload_drift=1e-6,
    beta=0.1,
    delay_logits=(0.4, 0.3, 0.2, 0.1, 0.0),
    sharpness=60.0,
)
K_D, LAMBDA, SLOPE, K_P = 25.0, 3.0, 5.0, 100.0


def reference(time_s, num):
    angle = 1.2 * time_s + np.arange(2 * num).reshape(num, 2)
    return 0.6 * np.sin(angle), 0.72 * np.cos(angle), -0.864 * np.sin(angle)


def follow(bank, *, delay_s=0.0, payload_kg=0.0, told_kg=0.0, num=2, num_ticks=400):
    """Drive arms along a sinusoid by what the bank believes; return what it was wrong by at last.

    Returns:
        Errors of q and qd, shape (num, 2), the payload that it believes, and its weights.
    """
    sensing = replace(SETTINGS.plant.sensing, transport_delay_s=delay_s)
    plant = make_plant('rk4', replace(SETTINGS, plant=replace(SETTINGS.plant, sensing=sensing)))
    q_d, qd_d, qdd_d = reference(0.0, num)
    state = plant.reset(start(q_d, qd_d, payload_kg=payload_kg))
    bank.begin(
        state.q_rad, state.qd_radps, np.full(num, told_kg), ARM.body(told_kg).gravity(state.q_rad)
    )
    for k in range(num_ticks):
        q_d, qd_d, qdd_d = reference(DT_S * k, num)
        found = bank.innovate(state.q_rad, state.qd_radps)
        by = bank.constant_schedule()
        bank.correct(found, by)
        belief = bank.to_now(by, qd_d, qdd_d)
        truth = plant.true_q_rad
        e, e_dot = q_d - belief.q, qd_d - belief.qd
        a = qdd_d + LAMBDA * e_dot + K_D * (e_dot + SLOPE * e) + K_P * e
        posture = ARM.body(belief.payload_kg).at(belief.q, belief.qd)
        limit = np.array(ARM.limits.effort_nm)
        effort = np.clip(posture.apply(a) + posture.bias + belief.d_nm, -limit, limit)
        bank.record_effort(effort)
        state = plant.step(effort)
    plant.close()
    return belief.q - truth, q_d - truth, belief.payload_kg, bank.pi


@pytest.mark.parametrize('delay', [0, 1, 2, 4])
def test_shorter_delays_than_the_true_one_are_ruled_out_and_the_arm_is_seen_as_it_is_now(delay):
    off, error, _, pi = follow(ObserverBank(BANK, ARM, DT_S), delay_s=delay * DT_S)
    assert pi[:, :delay].sum(axis=-1).max() < 0.02
    assert np.abs(off).max() < 0.25 * delay * DT_S * 0.72 + 2e-3  # 0.72 rad/s: the fastest motion
    assert np.abs(error).max() < 0.02


@pytest.mark.parametrize(('payload_kg', 'told_kg'), [(1.5, 0.0), (0.0, 1.5), (1.0, 1.0)])
def test_a_wrong_payload_is_corrected_by_more_than_half_within_four_seconds(payload_kg, told_kg):
    bank = ObserverBank(BANK, ARM, DT_S)
    _, error, found_kg, _ = follow(bank, payload_kg=payload_kg, told_kg=told_kg)
    assert (np.abs(found_kg - payload_kg) < 0.5 * abs(told_kg - payload_kg) + 0.15).all()
    assert np.abs(error).max() < 0.02


def test_where_no_payload_is_told_the_expected_one_is_taken_at_first():
    bank = ObserverBank(replace(BANK, payload_mean=0.2), ARM, DT_S)
    rest, told_kg = np.zeros((3, 2)), np.array([0.0, 1e-3, 1.5])
    bank.begin(rest, rest, told_kg, ARM.body(0.0).gravity(rest))
    bank.innovate(rest, rest)
    belief = bank.to_now(bank.constant_schedule(), rest, rest)
    assert belief.payload_kg == pytest.approx([0.6, 1e-3, 1.5])


def test_a_batch_is_its_arms_one_by_one():
    rng = np.random.default_rng(5)
    together = ObserverBank(BANK, ARM, DT_S)
    alone = [ObserverBank(BANK, ARM, DT_S) for _ in range(3)]
    q, qd = rng.normal(0.0, 0.3, (2, 3, 2))
    told, effort = rng.uniform(0.0, 2.0, 3), rng.normal(0.0, 10.0, (3, 2))
    together.begin(q, qd, told, effort)
    for i, bank in enumerate(alone):
        bank.begin(q[i], qd[i], told[i], effort[i])
    for _ in range(30):
        q, qd = q + DT_S * qd, qd + rng.normal(0.0, 0.02, (3, 2))
        effort = rng.normal(0.0, 5.0, (3, 2))
        belief = one_tick(together, q, qd, effort)
        for i, bank in enumerate(alone):
            for ours, theirs in zip(one_tick(bank, q[i], qd[i], effort[i]), belief, strict=True):
                np.testing.assert_allclose(ours, theirs[i], rtol=1e-12, atol=1e-13)


def one_tick(bank, q, qd, effort):
    found, zero = bank.innovate(q, qd), np.zeros(q.shape)
    by = bank.constant_schedule()
    bank.correct(found, by)
    bank.record_effort(effort)
    return bank.to_now(by, zero, zero)


def test_a_hypothesis_that_runs_away_is_brought_back_to_what_is_measured():
    bank = ObserverBank(BANK, ARM, DT_S)
    q, qd, largest = np.array([0.1, 0.2]), np.zeros(2), np.array(ARM.limits.effort_nm)
    bank.begin(q, qd, np.array(0.0), np.zeros(2))
    for _ in range(50):  # the joints are jammed: full effort, and nothing moves
        belief = one_tick(bank, q, qd, largest)
    bank._state[1] = np.nan
    found = bank.innovate(q, qd)
    assert (np.abs(found.nu_q) <= PULL_Q_RAD + 1e-12).all()
    assert (np.abs(found.nu_v) <= PULL_V_RADPS + 1e-12).all()
    bank.correct(found, bank.constant_schedule())
    belief = bank.to_now(bank.constant_schedule(), qd, qd)
    assert all(np.isfinite(part).all() for part in belief)
    assert np.abs(belief.q - q).max() < 2.0 * PULL_Q_RAD
    assert (np.abs(belief.d_nm) <= bank.unit_nm * BOUNDS.sum()).all()


def test_three_joints_need_no_other_code():
    arm = three_joints.ThreeJoints()
    bank = ObserverBank(BANK, arm, DT_S)
    q, qd = np.full((2, 3), 0.3), np.zeros((2, 3))
    held = arm.body().at(q, qd).gravity
    bank.begin(q, qd, np.zeros(2), held)
    for _ in range(50):  # at rest, held by gravity's torque: nothing is missing
        belief = one_tick(bank, q, qd, held)
    assert np.abs(belief.q - q).max() < 1e-3
    assert np.abs(belief.d_nm).max() < 0.05 * np.abs(held).max()


def test_the_share_of_implicitness_fits_an_exponential():
    x = np.array([1e-9, 0.1, 1.0, 10.0, 1e3])
    share = implicit_share(x)
    decayed = 1.0 - x / (1.0 + share * x)  # one linearly implicit step of v' = -x v
    np.testing.assert_allclose(decayed, np.exp(-x), atol=1e-3)
    assert share[0] == pytest.approx(0.5, abs=1e-3)
    assert share[-1] == pytest.approx(1.0, abs=2e-3)


def test_the_regressors_are_odd_but_for_the_offset():
    v, zeta = np.linspace(-1.0, 1.0, 7), np.linspace(-2.0, 2.0, 14).reshape(2, 7)
    np.testing.assert_array_equal(features(-v, -zeta)[..., :-1], -features(v, zeta)[..., :-1])
    np.testing.assert_array_equal(features(v, zeta)[..., -1], 1.0)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'num_delays': 0, 'delay_logits': ()}, 'num_delays: expected 1 to 10, found 0'),
        ({'num_delays': 4}, 'delay_logits'),
        ({'prior_mean': (0.0,)}, 'prior_mean'),
        ({'prior_std': (1.0,) * 6}, 'prior_std'),
        ({'drift': (0.0,) * 7}, 'drift'),
        ({'correction': (0.5,) * 5}, 'correction'),
        ({'payload_max_kg': 0.0}, 'payload_max_kg'),
        ({'noise': -1.0}, 'noise'),
    ],
)
def test_settings_that_make_no_bank_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(BANK, **changes)
