# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0

from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from metactl_ros.settings import load_settings
from training.judge.regimes import draw_cases, load_benchmark, MOVE_S, Regime, Sensors, settings_in

SETTINGS, BENCHMARK = load_settings(), load_benchmark()
PEAK_NM = (100.0, 30.0)
PLAIN = Regime(name='plain', meaning='as it is')
SMALL = replace(BENCHMARK.judging, rollouts=3, payloads_kg=(0.0, 1.5))


def test_no_seed_payload_or_reference_is_both_tuned_on_and_judged():
    tuned, judged = BENCHMARK.tuning, BENCHMARK.judging
    assert tuned.seed != judged.seed
    assert not set(tuned.payloads_kg) & set(judged.payloads_kg)
    assert tuned.omega_radps != judged.omega_radps
    assert tuned.amplitude_rad != judged.amplitude_rad


def test_judged_references_are_those_of_the_task():
    task = SETTINGS.plant.task
    assert BENCHMARK.judging.amplitude_rad == task.amplitude_rad
    assert BENCHMARK.judging.omega_radps == task.omega_radps


def test_a_plain_regime_changes_nothing():
    assert settings_in(SETTINGS, PLAIN, PEAK_NM) == SETTINGS


@pytest.mark.parametrize(
    ('change', 'path', 'expected'),
    [
        ({'memory_factor': 3.0}, 'friction.memory_gain_nmprad', 3.0 * 4.6),
        ({'velocity_noise_radps': 0.02}, 'sensing.velocity_noise_radps', 0.02),
        ({'encoder_bits': 12}, 'sensing.encoder_bits', 12),
        ({'transport_delay_s': 0.02}, 'sensing.transport_delay_s', 0.02),
        ({'effort_limit_factor': 1.2}, 'sensing.actuator_limit_nm', (120.0, 36.0)),
        ({'payload_step_kg': 0.5}, 'sensing.payload_step_kg', 0.5),
        ({'payload_step_at_s': 2.5}, 'sensing.payload_step_at_s', 2.5),
        ({'tau_z_drift_to_s': 5.0}, 'sensing.tau_z_drift_to_s', 5.0),
        ({'duration_s': 60.0}, 'sensing.tau_z_drift_over_s', 60.0),
    ],
)
def test_a_regime_changes_what_it_says_and_nothing_else(change, path, expected):
    plant = settings_in(SETTINGS, replace(PLAIN, **change), PEAK_NM).plant
    section, name = path.split('.')
    assert getattr(getattr(plant, section), name) == pytest.approx(expected)
    restored = replace(
        getattr(plant, section), **{name: getattr(getattr(SETTINGS.plant, section), name)}
    )
    assert replace(plant, **{section: restored}) == SETTINGS.plant


def test_payloads_share_their_phases_and_follow_each_other():
    episodes = draw_cases(SETTINGS, PLAIN, SMALL)
    assert episodes.start.payload_kg.tolist() == [0.0] * 3 + [1.5] * 3
    np.testing.assert_array_equal(
        episodes.reference.phase_rad[:3], episodes.reference.phase_rad[3:]
    )
    assert len(np.unique(episodes.reference.phase_rad[:3, 0])) == 3


def test_a_faster_regime_is_the_same_motion_in_less_time():
    slow = draw_cases(SETTINGS, PLAIN, SMALL).reference
    fast = draw_cases(SETTINGS, replace(PLAIN, speed_factor=2.0), SMALL).reference
    np.testing.assert_allclose(fast.at(0.7).q_rad, slow.at(1.4).q_rad, rtol=0.0, atol=1e-12)


def test_a_move_ends_elsewhere_within_the_range_and_then_rests():
    motion = draw_cases(SETTINGS, replace(PLAIN, motion='point_to_point'), SMALL).reference
    begin, end = motion.at(0.0), motion.at(MOVE_S + 1.0)
    assert (np.abs(end.q_rad - begin.q_rad) >= 0.8).all()
    assert (np.abs(end.q_rad) <= 0.8 + 1e-12).all()
    assert not end.qd_radps.any()
    assert draw_cases(SETTINGS, replace(PLAIN, motion='point_to_point'), SMALL).of_arm(1)


def test_every_regime_can_be_drawn_and_has_a_tuning_of_its_own():
    for regime in BENCHMARK.regimes:
        settings = settings_in(SETTINGS, regime, PEAK_NM)
        assert len(draw_cases(settings, regime, SMALL).payload_estimate_kg) == 6
        tuned = BENCHMARK.regime(getattr(BENCHMARK.sensors, regime.tuned_for))
        assert tuned.tuned_for == regime.tuned_for
    assert [f.name for f in fields(Sensors)] == list(asdict(BENCHMARK.sensors))
