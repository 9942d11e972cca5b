# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import functools
import json
import logging
from pathlib import Path
import re
import shutil
from typing import get_args

import numpy as np
import onnx
import pytest
from support.bundles import files_of, finished_run, made_bundle
from support.graphs import computed_shapes
import torch

from metactl_ros.control.window import feature_names, step_observation
from metactl_ros.errors import BundleError
from metactl_ros.policy.bundle import load_bundle, read_bundle
from metactl_ros.policy.network import OnnxPolicy, PolicyShape
from metactl_ros.policy.onnx_graph import check_graph, OPERATORS
from metactl_ros.signals import ArmState, Reference
from training import export
from training.export import export_bundle, ExportedActor, main, to_onnx, without_folders
from training.learn.checkpoint import load_policy
from training.learn.networks import build_policy, Model, NetworkConfig, TRANSFORMER_HEADS
from training.learn.run import RunError

ROOT = Path(__file__).resolve().parents[2]
MODELS = get_args(Model)
W, F, M = 5, 11, 8
RECORD = {
    'model': 'incrt',
    'heads': 1,
    'window': 5,
    'preset': 'robust',
    'steps': 10,
    'seed': 1,
    'plant': 'rk4',
    'tau_z': 2.0,
    'rmse': 0.0123,
    'baseline_rmse': 0.1326,
    'delta_percent': -90.7,
    'shield_activation': 0.01,
    'payload_levels_kg': [0.0, 1.5],
    'num_rollouts_per_payload': 20,
    'num_lost': 0,
}


def windows(num, rng):
    """Return windows of the task's size, shape (num, W, F): errors small beside the motion."""
    q = rng.uniform(-0.8, 0.8, (num, W, 2))
    qd = rng.uniform(-1.2, 1.2, (num, W, 2))
    state = ArmState(q_rad=q, qd_radps=qd, stamp_ns=123_000_000)
    reference = Reference(
        q_rad=q + rng.normal(0.0, 0.02, q.shape),
        qd_radps=qd + rng.normal(0.0, 0.1, q.shape),
        qdd_radps2=np.zeros_like(q),
    )
    return step_observation(state, reference, rng.uniform(0.0, 1.5, (num, 1)), 0.2, 5.0)


@functools.cache
def exported(model):
    """Return a network with lively weights, and its ONNX file."""
    torch.manual_seed(3)
    heads = TRANSFORMER_HEADS if model == 'transformer' else 2
    policy = build_policy(NetworkConfig(model, heads, W, tokens='error_scaled'))
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.mul_(1.5)
    network = ExportedActor(policy.actor)
    return policy, network, to_onnx(network, W, F)


@pytest.mark.parametrize('model', MODELS)
def test_every_model_gives_the_same_actions_in_onnxruntime(model):
    _, network, data = exported(model)
    check_graph(Path(model), data)
    policy = OnnxPolicy(data, PolicyShape(W, F, M))
    rows = windows(1000, np.random.default_rng(0))
    expected = network.act(rows)
    assert expected.std() > 0.01
    np.testing.assert_allclose(policy(rows), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(policy(rows[0]), expected[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize('model', MODELS)
def test_every_model_gives_the_actions_it_was_trained_to_give(model):
    policy, network, _ = exported(model)
    rows = windows(100, np.random.default_rng(1)).astype(np.float32)
    with torch.no_grad():
        flat = torch.tensor(rows).reshape(100, -1)
        trained = policy.actor(flat, deterministic=True).numpy()
    np.testing.assert_allclose(network.act(rows), trained, rtol=0, atol=1e-4)


@pytest.mark.parametrize('model', MODELS)
def test_every_shape_of_every_model_is_known_before_it_runs(model):
    data = exported(model)[2]
    names = {name for node in onnx.load_from_string(data).graph.node for name in node.output}
    shapes = check_graph(Path(model), data)
    assert computed_shapes(data, names) == {name: shapes[name] for name in names}


def test_a_robot_accepts_the_operators_of_the_exporter_and_no_others():
    graphs = [onnx.load_from_string(exported(model)[2]).graph for model in MODELS]
    assert {node.op_type for graph in graphs for node in graph.node} == OPERATORS.keys()


@pytest.fixture(scope='module')
def made(settings, tmp_path_factory):
    return made_bundle(tmp_path_factory, settings)


@pytest.fixture(scope='module')
def run(made):
    return made.with_name('run_of_made')


@pytest.fixture
def quick(monkeypatch, made):
    """Skip torch: the graph of this run has been made before."""
    data = (made / 'policy.onnx').read_bytes()
    monkeypatch.setattr(export, 'to_onnx', lambda *_: data)


def test_a_run_quietly_gives_the_same_bundle_twice(run, made, tmp_path, capfd, caplog):
    before = logging.root.manager.disable
    export_bundle(run, tmp_path / made.name)
    assert files_of(tmp_path / made.name) == files_of(made)
    assert capfd.readouterr() == ('', '')
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert logging.root.manager.disable == before


def test_a_bundle_acts_like_its_run(run, made):
    policy = load_policy(run)
    rows = windows(1000, np.random.default_rng(2))
    np.testing.assert_allclose(read_bundle(made).policy(rows), policy(rows), rtol=0, atol=1e-5)


def test_a_bundle_tells_nothing_of_the_machine(made, run):
    for name, data in files_of(made).items():
        for secret in (ROOT, run, made.parent, Path.home(), 'site-packages', Path('/tmp')):
            assert f'{secret}/'.encode() not in data, (name, secret)


@pytest.mark.parametrize(
    ('word', 'told'),
    [
        ('--out', '--out'),
        ('/home/me/runs/a', 'a'),
        ('/home/me/runs/a/', 'a'),
        ('--out=/home/me/runs/a', '--out=a'),
        ('~/runs/a', 'a'),
        ('../../me/a', 'a'),
        ('runs/train/a', 'runs/train/a'),
        ('2', '2'),
    ],
)
def test_commands_lose_folders_outside_the_checkout(word, told):
    assert without_folders(word) == told


def test_the_contract_states_what_was_trained(settings, made):
    contract = read_bundle(made).contract
    assert contract.features == feature_names(settings.arm.joint_names)
    assert contract.tokens.kind == 'error_scaled'
    assert contract.tokens.error_rad == 0.05
    assert contract.training['run']['model'] == 'incrt'
    assert contract.training['run']['hyper']['gamma'] == 0.9
    assert {'torch', 'numpy'} <= contract.training['versions'].keys()
    assert {'torch', 'onnxruntime'} <= contract.training['exported_with'].keys()


def test_raw_tokens_have_no_scales():
    assert export.token_scales('raw').error_rad == 1.0


def copy_run(run, folder, change=lambda content: None):
    """Copy a run, with another config.json."""
    shutil.copytree(run, folder)
    content = json.loads((folder / 'config.json').read_text())
    change(content)
    (folder / 'config.json').write_text(json.dumps(content))
    return folder


def test_the_settings_of_the_run_count_and_not_those_of_today(settings, run, tmp_path, quick):
    def lighter(content):
        content['settings']['arm']['link_masses_kg'] = [5.0, 4.0]

    export_bundle(copy_run(run, tmp_path / 'run', lighter), tmp_path / 'a.metactl')
    with pytest.raises(BundleError, match=re.escape('made for (5.0, 4.0)')):
        load_bundle(tmp_path / 'a.metactl', settings.arm, settings.controller)
    arm = replace(settings.arm, link_masses_kg=(5.0, 4.0))
    load_bundle(tmp_path / 'a.metactl', arm, settings.controller)


def test_a_run_from_before_extra_features_can_be_exported(run, tmp_path, quick):
    def older(content):
        del content['settings']['controller']['context']['num_extra']

    bundle = export_bundle(copy_run(run, tmp_path / 'run', older), tmp_path / 'a.metactl')
    assert bundle.contract.context.num_extra == 0


# Writing


def test_a_bundle_is_not_overwritten_without_being_told(run, made, tmp_path, quick):
    target = tmp_path / made.name
    shutil.copytree(made, target)
    (target / 'card.md').write_text('old')
    with pytest.raises(BundleError, match=r'is there already; choose another name, or .* --force'):
        export_bundle(run, target)
    assert (target / 'card.md').read_text() == 'old'
    export_bundle(run, target, may_replace=True)
    assert files_of(target) == files_of(made)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize('kind', ['folder', 'file', 'dangling link'])
def test_what_is_no_bundle_is_never_replaced(run, tmp_path, quick, kind):
    target = tmp_path / 'a.metactl'
    if kind == 'folder':
        target.mkdir()
        (target / 'thesis.tex').write_text('years')
    elif kind == 'file':
        target.write_text('years')
    else:
        target.symlink_to('nowhere')
    with pytest.raises(BundleError, match='is there already'):
        export_bundle(run, target, may_replace=True)
    assert list(tmp_path.iterdir()) == [target]


def test_a_bundle_that_does_not_load_is_not_left_behind(run, tmp_path, quick, monkeypatch):
    def refuse(path, *_):
        assert sorted(one.name for one in path.iterdir())[0] == 'SHA256SUMS'
        raise BundleError('no')

    monkeypatch.setattr(export, 'load_bundle', refuse)
    with pytest.raises(BundleError, match='no'):
        export_bundle(run, tmp_path / 'deep' / 'a.metactl')
    assert not list((tmp_path / 'deep').iterdir())


def test_what_a_killed_export_left_does_not_hinder_the_next(run, tmp_path, quick, monkeypatch):
    monkeypatch.setattr('os.getpid', lambda: 7)
    (tmp_path / '.a.metactl.7.new').mkdir()
    (tmp_path / '.a.metactl.7.new' / 'card.md').write_text('half a c')
    export_bundle(run, tmp_path / 'a.metactl')
    assert [one.name for one in tmp_path.iterdir()] == ['a.metactl']


def test_a_network_that_does_not_survive_the_export_is_refused(run, tmp_path, quick, monkeypatch):
    real = ExportedActor.act
    monkeypatch.setattr(ExportedActor, 'act', lambda self, window: real(self, window) + 2e-6)
    with pytest.raises(BundleError, match=r'onnxruntime and torch differ by 2e-06 on rollouts'):
        export_bundle(run, tmp_path / 'a.metactl')
    assert not list(tmp_path.iterdir())


# The card


def card_with(run, folder, result):
    (folder / 'result.json').write_text(json.dumps(result))
    return export_bundle(run, folder / 'a.metactl', folder / 'result.json').card


def test_the_card_says_what_the_policy_is_and_how_it_was_made(made):
    card = read_bundle(made).card
    assert card.startswith('# made.metactl\n')
    for words in (
        'last 5 observations',
        'incrt, 1 heads',
        '10 steps, seed 1',
        'No evaluation was given',
        'joint1, joint2',
        'K_d 10 to 60 1/s',
        '1024 windows',
        'not a safety-rated function',
    ):
        assert words in card


def test_the_card_shows_the_results_of_this_run_alone(run, tmp_path, quick):
    others = [RECORD | {'seed': 2, 'tau_z': 7.0}, {'controller': 'ct'}]
    card = card_with(run, tmp_path, [*others, RECORD])
    assert '| rk4 | 2 s | 0.0123 rad | 0.1326 rad | -90.7 % | 1.0 % | 40 | 0 |' in card
    assert '7 s' not in card
    assert 'No evaluation' not in card


def test_the_card_shows_that_rollouts_were_lost(run, tmp_path, quick):
    lost = RECORD | {'rmse': None, 'delta_percent': None, 'num_lost': 3}
    assert '| rk4 | 2 s | - | 0.1326 rad | - | 1.0 % | 40 | 3 |' in card_with(run, tmp_path, lost)


def test_results_of_another_policy_are_refused(run, tmp_path):
    with pytest.raises(RunError, match=r"has no record of .*'seed': 1.*; evaluate the run with"):
        card_with(run, tmp_path, RECORD | {'seed': 2})


# The command


def test_the_command_writes_a_bundle(run, tmp_path, quick, capsys):
    assert main(['--run', str(run), '--out', str(tmp_path / 'a.metactl')]) == 0
    told = capsys.readouterr().err.replace('\n', '')
    assert read_bundle(tmp_path / 'a.metactl').sha256 in told


@pytest.mark.parametrize(
    ('spoil', 'words', 'message'),
    [
        (lambda run: None, ['--out', 'bundle'], 'bundle: expected a name that ends in .metactl'),
        (lambda run: None, ['--result', 'none.json'], 'none.json: cannot be read'),
        (lambda run: shutil.rmtree(run), [], 'not a run directory'),
        (lambda run: (run / 'model.zip').unlink(), [], 'model.zip: not there; finish the run'),
        (lambda run: (run / 'model.zip').write_bytes(b'PK'), [], 'model.zip: damaged'),
    ],
)
def test_wrong_use_ends_with_a_message_and_code_2(run, tmp_path, capsys, spoil, words, message):
    copy = copy_run(run, tmp_path / 'run')
    spoil(copy)
    assert main(['--run', str(copy), '--out', str(tmp_path / 'a.metactl'), *words]) == 2
    assert message in capsys.readouterr().err.replace('\n', ' ').replace('  ', ' ')
    assert not (tmp_path / 'a.metactl').exists()


@pytest.mark.parametrize('key', ['settings', 'command', 'versions'])
def test_a_run_that_does_not_say_how_it_was_made_is_refused(run, tmp_path, key):
    copy = copy_run(run, tmp_path / 'run', lambda content: content.pop(key))
    with pytest.raises(RunError, match=f"config.json: lacks '{key}'; train it again"):
        export_bundle(copy, tmp_path / 'a.metactl')


def test_another_model_makes_a_bundle_as_well(settings, tmp_path):
    run = finished_run(tmp_path / 'run', settings, model='mlp', window=3)
    bundle = export_bundle(run, tmp_path / 'mlp.metactl')
    assert bundle.controller.context.num_rows == 3
    assert 'mlp' in bundle.card
