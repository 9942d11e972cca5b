# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that change one setting each."""

from dataclasses import asdict, replace
from functools import partial
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support import bundles
from support.episodes import start

from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_file, make_plant
from training import evaluate
from training.learn.run import (
    load_differences,
    load_presets,
    read_run,
    read_settings,
    settings_of,
    with_difference,
)
from training.records import leaves
from training.sweep import expand, Study, train_command
from training.train import main, mean_rmse, train

ROOT = Path(__file__).resolve().parents[2]
STUDY = load_file(Study, ROOT / 'config/studies/differences.yaml', '')
PAPER = load_presets().paper
Q_RAD = [0.3, 0.5]


small_run = partial(bundles.small_run, 20, preset='paper', model='mlp', hyper=PAPER)


def changed(before, after):
    one, two = (dict(leaves(asdict(value))) for value in (before, after))
    return {name for name in one | two if one.get(name) != two.get(name)}


@pytest.mark.parametrize('name', load_differences())
def test_a_difference_changes_something_and_nothing_twice(settings, name):
    one, hyper = with_difference(settings, name), with_difference(PAPER, name)
    assert changed(settings, one) or changed(PAPER, hyper)
    assert with_difference(one, name) == one
    assert with_difference(hyper, name) == hyper


def test_a_difference_changes_what_it_says_and_leaves_the_rest(settings):
    expected = {
        'no_bias': {'controller.gain_box.feed_forward'},
        'no_feed_forward': {'controller.gain_box.feed_forward'},
        'payload_scales_mass': {'plant.payload_scale_per_kg'},
        'heavy_arm': {'arm.link_masses_kg'},
        'light_arm': {'arm.link_masses_kg', 'plant.friction.smoothing_velocity_radps'},
        'strict_shield': {'controller.lyapunov.target_error_rad'},
        'reward_scale_1': set(),
    }
    for name, own in expected.items():
        assert changed(settings, with_difference(settings, name)) == own, name
    assert changed(PAPER, with_difference(PAPER, 'reward_scale_1')) == {'reward_scale'}
    assert with_difference(settings, None) is settings
    columns = {
        name: with_difference(settings, name).controller.gain_box.columns
        for name in ('no_bias', 'no_feed_forward')
    }
    assert columns == {'no_bias': ('coulomb',), 'no_feed_forward': ()}


def test_a_difference_that_nobody_states_is_refused_with_the_names_there_are(settings):
    with pytest.raises(ConfigError, match=r"one of \['no_bias', .*found 'no_baas'"):
        with_difference(settings, 'no_baas')


def test_a_difference_that_misspells_a_setting_is_refused(settings, tmp_path, monkeypatch):
    (tmp_path / 'config').mkdir()
    text = 'wrong: {here: a, changed: b, settings: {arm: {link_mass_kg: [1.0, 1.0]}}}\n'
    (tmp_path / 'config' / 'differences.yaml').write_text(text)
    monkeypatch.setattr('training.learn.run.share_directory', lambda: tmp_path)
    with pytest.raises(ConfigError, match="wrong: arm: unknown key 'link_mass_kg'"):
        with_difference(settings, 'wrong')


def test_the_study_begins_with_nothing_changed_and_repeats_what_is_likely():
    runs = expand(STUDY)
    unchanged = [(run.seed, number) for number, run in enumerate(runs) if run.difference is None]
    assert unchanged == [(42, 0), (43, 1), (44, 8)]
    likely = [run.difference for run in runs[2:8]]
    assert likely == [run.difference for run in runs[9:15]]
    assert {run.difference for run in runs} == {None, *load_differences()}
    assert all(run.hyper == with_difference(PAPER, run.difference) for run in runs)
    assert len({run.name for run in runs}) == len(runs) == 39


def test_a_run_keeps_its_difference_in_its_name_command_settings_and_record(tmp_path, settings):
    run = small_run(difference='no_feed_forward')
    assert run.name == 'paper_mlp_k1_w5_tau2_no_feed_forward_seed1'
    assert '--difference=no_feed_forward' in train_command(run, tmp_path)
    assert not any('difference' in word for word in train_command(small_run(), tmp_path))
    folder, quiet = tmp_path / run.name, Console(quiet=True)
    assert train(folder, settings_of(settings, run), run, resume=False, console=quiet)
    assert read_run(folder) == run
    assert read_settings(folder).controller.gain_box.columns == ()
    words = ['--run', str(folder), '--tau-z', '2', '--rollouts', '1', '--jobs', '1']
    assert evaluate.main([*words, '--out', str(tmp_path / 'results')]) == 0
    (path,) = (tmp_path / 'results').iterdir()
    record = json.loads(path.read_text())
    assert record['difference'] == 'no_feed_forward'
    assert record['settings']['controller']['gain_box']['feed_forward'] == []


def test_runs_of_different_differences_are_not_evaluated_together(tmp_path, settings, capsys):
    for name in ('no_bias', 'heavy_arm'):
        folder = tmp_path / name
        folder.mkdir()
        content = {'run': asdict(small_run(difference=name))}
        (folder / 'config.json').write_text(json.dumps(content))
    runs = [str(tmp_path / name) for name in ('no_bias', 'heavy_arm')]
    assert evaluate.main(['--run', *runs, '--out', str(tmp_path / 'results')]) == 2
    assert 'different differences (no_bias, heavy_arm)' in capsys.readouterr().err
    one = evaluate.with_difference_of([tmp_path / 'heavy_arm'], settings)
    assert one == with_difference(settings, 'heavy_arm')


def test_a_difference_that_a_run_was_begun_without_cannot_be_given_when_it_resumes(
    tmp_path, capsys
):
    content = {'run': asdict(small_run(difference='no_bias'))}
    (tmp_path / 'config.json').write_text(json.dumps(content))
    assert main(['--resume', str(tmp_path), '--difference', 'heavy_arm']) == 2
    assert '--difference heavy_arm' in capsys.readouterr().err


def first_acceleration(settings, payload_kg, effort_nm):
    """Return qdd of a resting, bent arm in the first period, rad / s^2."""
    plant = make_plant('rk4', settings)
    plant.reset(start(Q_RAD, payload_kg=payload_kg))
    return plant.step(effort_nm).qd_radps / 0.01


def test_a_payload_that_scales_the_mass_slows_the_arm_and_weighs_nothing(settings, no_friction):
    scaled, point = with_difference(settings, 'payload_scales_mass'), settings
    scaled, point = (
        replace(s, plant=replace(s.plant, friction=no_friction)) for s in (scaled, point)
    )
    holding = settings.arm.body().gravity(np.array(Q_RAD))
    assert np.allclose(first_acceleration(scaled, 1.5, holding), 0.0, atol=1e-9)
    assert np.abs(first_acceleration(point, 1.5, holding)).max() > 1.0
    push = holding + np.array([0.5, 0.2])
    bare, loaded = (first_acceleration(scaled, payload, push) for payload in (0.0, 1.5))
    assert np.array_equal(bare, first_acceleration(point, 0.0, push))
    assert bare / loaded == pytest.approx([2.5, 2.5], rel=1e-3)


def test_without_a_factor_the_payload_is_where_it_was_to_the_bit(settings):
    assert settings.plant.payload_scale_per_kg is None
    run = small_run(difference='payload_scales_mass')
    assert mean_rmse(settings_of(settings, run), run, None) != mean_rmse(settings, run, None)


def test_the_bullet_plant_refuses_a_payload_that_scales_the_mass(settings):
    with pytest.raises(ConfigError, match='payload_scale_per_kg: the PyBullet plant'):
        make_plant('bullet', with_difference(settings, 'payload_scales_mass'))
