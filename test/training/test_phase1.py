# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
import math
from pathlib import Path

from hypothesis import given, strategies
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest

from metactl_ros.errors import ConfigError
from training.phase1 import Evidence, judge, main, PAPER, Search, search_heads, VERSIONS
from training.rank import (
    at_offsets,
    count_above_noise,
    count_heads,
    draw_instants,
    fit_gradients,
    gradient_samples,
    isotropic_noise,
    operator_of,
    participation_ratio,
    PerturbedMemory,
    regression_noise,
    rows_per_fit,
    simulate,
    Thresholds,
    Trajectories,
)

ROOT = Path(__file__).resolve().parents[2]
THRESHOLDS = Thresholds()
MEMORY = PerturbedMemory(tau_z_s=1.0, gain_nmprad=4.6, v_p_radps=1.0, dt_s=0.01)
LINEAR = replace(MEMORY, v_p_radps=math.inf)
SMALL = Search(num_windows=40, window=8, num_bootstrap=5)

FACTORS = arrays.arrays(
    np.float64,
    strategies.tuples(strategies.integers(1, 6), strategies.integers(1, 9)),
    # Few whole numbers: zero matrices, repeated eigenvalues and rank deficits are common.
    elements=strategies.integers(-2, 2).map(float),
)


def printed_order(operator, thresholds):
    """Count heads in the order of the paper's Algorithm 1: grow, then prune, until K stays.

    It begins with u_1, and each iteration may keep one direction and drop one, by an eigenproblem
    and a deflation of its own. What is measured is corrected as `training/rank.py`
    says; the gate, which the paper leaves open, lets every decision pass.
    """
    norm, unchanged = np.linalg.norm(operator), 0

    def leading(matrix):
        values, vectors = np.linalg.eigh(matrix)
        return vectors[:, -1], values[-1] * np.outer(vectors[:, -1], vectors[:, -1])

    def sum_of(directions):
        return sum((part for _, part in directions), np.zeros_like(operator))

    def effective_rank(matrix):
        total = np.linalg.norm(matrix)
        return 0.0 if total <= 1e-12 * norm else np.trace(matrix) ** 2 / total**2

    kept = [leading(operator)]
    while unchanged < thresholds.num_stable:
        num_before, proposed = len(kept), leading(operator - sum_of(kept))
        growth = effective_rank(sum_of([*kept, proposed])) - effective_rank(sum_of(kept))
        if growth > thresholds.gamma_add:
            kept.append(proposed)
        scores = [u @ operator @ u / norm if norm else 0.0 for u, _ in kept]
        if kept and min(scores) < thresholds.gamma_prune:
            del kept[int(np.argmin(scores))]
        unchanged = unchanged + 1 if len(kept) == num_before else 0
    return len(kept)


# The algorithm.


@pytest.mark.parametrize(
    ('spectrum', 'heads'),
    [
        ((1.0, 0.0, 0.0), 1),
        ((1.0, 1.0, 1.0, 0.0), 3),
        ((4.0, 1.0), 2),  # r_eff 1 -> 25/17
        ((1.0, 0.026), 2),  # 2 x / (1 + x^2) = 0.05196
        ((1.0, 0.024), 1),  # 2 x / (1 + x^2) = 0.04797
        ((1.0, 0.5, 0.02), 2),  # 1 -> 1.8 -> 2.3104/1.2504 = 1.8477, growth 0.0477
        ((1.0, 0.5, 0.03), 3),  # 1 -> 1.8 -> 2.3409/1.2509 = 1.8714, growth 0.0714
        (20 * (1.0,), 20),
    ],
)
def test_known_spectra_give_the_heads_counted_by_hand(spectrum, heads):
    assert count_heads(np.diag(spectrum), THRESHOLDS).k_star == heads


def test_growth_signals_are_those_of_a_spectrum_worked_by_hand():
    spectrum = np.diag([2.0, 1.0, 1.0])
    retained = count_heads(spectrum, THRESHOLDS)
    assert retained.growth == pytest.approx((9 / 5 - 1, 16 / 6 - 9 / 5, 0.0))
    residual = count_heads(spectrum, THRESHOLDS, signal='residual')
    assert residual.growth == pytest.approx((2 - 1, 1 - 0, 0.0))


def test_the_printed_signal_is_negative_where_one_eigenvalue_dominates_the_residual():
    spectrum = np.diag([1.0, 0.5, 0.01, 0.01, 0.01])
    residual = count_heads(spectrum, THRESHOLDS, signal='residual')
    assert residual.growth[0] < 0.0
    assert residual.k_star == 1
    assert count_heads(spectrum, THRESHOLDS).k_star == 2


def test_effective_rank_is_the_participation_ratio_at_any_scale():
    assert participation_ratio(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert participation_ratio(1e-200 * np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert participation_ratio(np.zeros(3)) == 0.0


@given(FACTORS)
def test_every_operator_ends_in_a_fixed_point(factor):
    operator = factor.T @ factor
    heads = count_heads(operator, THRESHOLDS)
    rank = np.linalg.matrix_rank(operator)
    assert min(rank, 1) <= heads.k_star <= rank
    assert heads.num_iterations <= (len(operator) + 1) * THRESHOLDS.num_stable
    assert heads.k_star == count_heads(1e-9 * operator, THRESHOLDS).k_star
    assert count_heads(operator, THRESHOLDS, signal='residual').k_star <= rank


@given(FACTORS)
def test_heads_are_those_of_growing_and_pruning_step_by_step(factor):
    operator = factor.T @ factor
    assert count_heads(operator, THRESHOLDS).k_star == printed_order(operator, THRESHOLDS)


def test_the_printed_order_prunes_what_it_has_just_grown_and_ours_does_not_begin_to():
    strict = Thresholds(gamma_prune=0.3)
    # The second contributes 0.24: grown (by 0.47), pruned, and so for ever.
    assert printed_order(np.diag([4.0, 1.0]), strict) == 1
    assert count_heads(np.diag([4.0, 1.0]), strict).k_star == 1
    # All contribute 0.22: one is grown and one dropped in each iteration, so that K stays. Here
    # growth that pruning would undo is not begun, and the last one is dropped.
    assert printed_order(np.eye(20), strict) == 1
    assert count_heads(np.eye(20), strict).k_star == 0


@given(FACTORS)
def test_the_deflated_residual_is_orthogonal_to_every_kept_direction(factor):
    operator = factor.T @ factor
    heads = count_heads(operator, THRESHOLDS)
    residual = operator - (heads.directions.T * heads.eigenvalues) @ heads.directions
    np.testing.assert_allclose(residual @ heads.directions.T, 0.0, atol=1e-10)
    gram = heads.directions @ heads.directions.T
    np.testing.assert_allclose(gram, np.eye(heads.k_star), atol=1e-12)


def test_no_memory_needs_no_head():
    assert count_heads(np.zeros((20, 20)), THRESHOLDS).k_star == 0


def test_a_gate_that_cannot_open_is_refused():
    with pytest.raises(ConfigError, match='cannot open within num_stable = 20'):
        Thresholds(gate_memory=0.99)


# The memory and its gradient.


@pytest.fixture(scope='module')
def motion(settings):
    return simulate(settings, 200, 1.0, np.random.default_rng(3))


@pytest.mark.parametrize('memory', [MEMORY, LINEAR, replace(MEMORY, v_p_radps=0.1)])
def test_history_gradient_equals_finite_differences(memory):
    rng = np.random.default_rng(0)
    qd = rng.uniform(0.05, 1.0, (60, 3)) * rng.choice([-1.0, 1.0], (60, 3))
    window, instants = 20, np.array([59, 40, 25])
    trajectories = simulated(qd)
    exact = gradient_samples(memory, trajectories, instants, window)[:, 0]  # (3, W)
    step = 1e-5
    for arm, t in enumerate(instants):
        for lag in range(1, window + 1):
            ends = []
            for side in (1.0, -1.0):
                moved = qd.copy()
                moved[t - lag, arm] += side * step
                ends.append(memory.along(moved)[t, arm])
            slope = (ends[0] - ends[1]) / (2.0 * step)
            assert exact[arm, lag - 1] == pytest.approx(slope, rel=1e-6, abs=1e-10)


def simulated(qd):
    """Return trajectories of one joint with the given velocities, shape (T + 1, N)."""
    return Trajectories(qd[..., np.newaxis], np.zeros((*qd.shape, 1)))


def test_a_step_of_the_memory_solves_its_differential_equation():
    qd, z = 0.7, 2.0
    fine = replace(MEMORY, dt_s=1e-6)
    rate = (fine.after(np.array(z), np.array(qd)) - z) / fine.dt_s
    expected = -(1.0 + abs(qd) / MEMORY.v_p_radps) * z / MEMORY.tau_z_s + MEMORY.gain_nmprad * qd
    assert rate == pytest.approx(expected, rel=1e-5)


def test_the_linear_gradient_is_the_papers_exponential_in_every_window(motion):
    instants = draw_instants(500, 200, 20, np.random.default_rng(0))
    samples = gradient_samples(LINEAR, motion, instants, 20)
    lags_s = 0.01 * np.arange(20)
    held = LINEAR.gain_nmprad * LINEAR.tau_z_s * (1.0 - math.exp(-0.01 / LINEAR.tau_z_s))
    expected = np.broadcast_to(held * np.exp(-lags_s / LINEAR.tau_z_s), samples.shape)
    np.testing.assert_allclose(samples, expected, rtol=1e-12)
    heads = count_heads(operator_of(samples), THRESHOLDS)
    assert heads.k_star == 1
    assert heads.growth == (0.0,)


def test_windows_begin_with_the_velocity_just_before_their_instant(motion):
    instants = draw_instants(500, 200, 20, np.random.default_rng(0))
    assert instants.min() >= 20
    assert instants.max() <= 480
    window = at_offsets(motion.qd_radps, instants, -np.arange(1, 21))
    np.testing.assert_array_equal(window[7, 0], motion.qd_radps[instants[7] - 1, 7])
    np.testing.assert_array_equal(window[7, 19], motion.qd_radps[instants[7] - 20, 7])


# Noise.


def test_pure_noise_triggers_the_warning():
    noise = np.random.default_rng(0).standard_normal((2048, 2, 20))
    found = judge(Evidence(noise, isotropic_noise), Search(num_bootstrap=5))
    assert found['k_star'] == 20
    assert found['noise_sets_the_rank']


def test_a_direction_of_pure_noise_rises_above_noise_in_5_percent_of_cases():
    streams = np.random.default_rng(0).spawn(60)
    above = []
    for rng in streams:
        noise = rng.standard_normal((200, 2, 10))
        heads = count_heads(operator_of(noise), THRESHOLDS)
        above.append(count_above_noise(noise, heads, rng))
        assert above[-1] < heads.k_star  # the warning never fails
    # Binomial, 60 trials of 5 %: more than 8 has a probability of 0.3 %.
    assert np.count_nonzero(above) <= 8


def test_fitting_noise_triggers_the_warning_and_fitting_memory_does_not():
    rng = np.random.default_rng(0)
    qd = rng.standard_normal((2000, 2, 20))  # unlike a real arm's, these excite every lag
    slope = np.exp(-0.05 * np.arange(20))
    noise = 0.1 * rng.standard_normal((2000, 2))
    search = Search(num_bootstrap=5)
    verdicts = []
    for target in (noise, qd @ slope + noise):
        fits = fit_gradients(qd, target)
        evidence = Evidence(fits.gradient, regression_noise(fits.covariance))
        verdicts.append(judge(evidence, search))
    np.testing.assert_allclose(fits.gradient.mean(axis=(0, 1)), slope, atol=0.02)
    assert verdicts[0]['noise_sets_the_rank']
    assert not verdicts[1]['noise_sets_the_rank']
    assert verdicts[1]['k_star'] == verdicts[1]['num_above_noise'] == 1


def test_two_strong_directions_in_weak_noise_are_both_above_it():
    rng = np.random.default_rng(1)
    modes = np.linalg.qr(rng.standard_normal((20, 2)))[0].T
    samples = rng.standard_normal((500, 1, 2)) @ modes
    samples = samples + 0.01 * rng.standard_normal((500, 1, 20))
    heads = count_heads(operator_of(samples), THRESHOLDS)
    assert heads.k_star == count_above_noise(samples, heads, rng) == 2


# The command.


def test_same_seed_same_numbers_and_another_seed_others(settings):
    first, again, other = (
        search_heads(settings, replace(SMALL, seed=seed), 1.0, lambda: None) for seed in (1, 1, 2)
    )
    assert first == again
    for version in ('v1', 'v2', 'v3_exact', 'v3_regression'):
        mine, theirs = (r['versions'][version]['spectrum'] for r in (first, other))
        assert mine != theirs


def test_the_command_writes_a_report_and_a_picture(tmp_path, capsys):
    target = tmp_path / 'again.json'
    small = ['--windows', '40', '--window', '8', '--bootstrap', '5', '--out', str(tmp_path)]
    assert main(['--tau-z', '1', '2.5', *small, '--json', str(target)]) == 0
    report = json.loads(target.read_text())
    assert report == json.loads((tmp_path / 'phase1.json').read_text())
    assert (tmp_path / 'spectrum.png').read_bytes().startswith(b'\x89PNG')
    assert [record['tau_z'] for record in report['records']] == [1.0, 2.5]
    assert report['records'][0]['paper'] == {'k_star': 8, 'r_eff': 9.3}
    assert report['records'][1]['paper'] == {'k_star': None, 'r_eff': None}
    assert report['search']['num_windows'] == 40
    assert report['settings']['plant']['friction']['memory_gain_nmprad'] > 0
    printed = capsys.readouterr().out
    assert "the paper's K* = 8 is not reproduced" in printed
    assert 'noise, not memory, sets the rank' in printed


def test_the_kept_report_is_the_full_search_and_bounds_phase_2():
    report = json.loads((ROOT / 'results' / 'phase1.json').read_text())
    assert report['search'] == json.loads(json.dumps(report['search'] | full_search()))
    assert [record['tau_z'] for record in report['records']] == list(PAPER)
    for record in report['records']:
        k_star = record['versions']['v3_exact']['k_star']
        assert record['k_star'] == k_star
        assert record['phase2_heads'] == [math.ceil(k_star / 2), k_star]
        assert tuple(record['versions']) == VERSIONS
        assert record['versions']['v3_linear']['k_star'] == 1
        for version in record['versions'].values():
            low, high = version['k_star_interval']
            assert low <= high
            assert sum(version['k_star_bootstrap'].values()) == 200


def full_search():
    return {
        'num_windows': 2048,
        'window': 20,
        'v_p_radps': 1.0,
        'num_bootstrap': 200,
        'thresholds': {
            'gamma_add': 0.05,
            'gamma_prune': 0.01,
            'num_stable': 20,
            'gate_memory': 0.5,
        },
    }


@pytest.mark.parametrize('tau_z', ['0', '-1', 'nan'])
def test_a_memory_horizon_that_is_not_positive_is_refused(tau_z, capsys):
    with pytest.raises(SystemExit):
        main([f'--tau-z={tau_z}'])
    assert 'expected a finite number above 0' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['--windows', '10', '--window', '20'], 'raise --windows or lower --window'),
        (['--windows', '5000', '--window', '300'], 'lower --window'),
        (['--window', '0'], 'Search.window'),
        (['--v-p', '0'], 'Search.v_p_radps'),
    ],
)
def test_a_search_that_cannot_work_is_refused_before_it_starts(options, message, tmp_path, capsys):
    out = tmp_path / 'out'
    assert main([*options, '--out', str(out)]) == 2
    assert message in ' '.join(capsys.readouterr().err.split())
    assert not out.exists()


def test_the_least_number_of_windows_leaves_every_fit_spare_rows():
    assert rows_per_fit(20) == 84
    with pytest.raises(ConfigError, match='at least 4'):
        Search(num_windows=83)
