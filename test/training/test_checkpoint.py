# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Run directories are numbers: whatever they hold, nothing in them is executed.

That a resumed run is the same to the bit is in `test_train.py`.
"""

from collections import deque
from dataclasses import replace
import io
import json
import os
from pathlib import Path
import pickle
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from rich.console import Console
from stable_baselines3.common.save_util import save_to_zip_file
from support.bundles import finished_run, small_run
import torch

from metactl_ros.settings import load_settings
from training.learn import checkpoint as module
from training.learn.checkpoint import load_checkpoint, load_network, save_checkpoint, save_result
from training.learn.networks import build_policy, NetworkConfig
from training.learn.run import begin_run, make_env, make_model, read_run, read_settings, RunError
from training.learn.shielded_sac import ShieldedSAC
from training.train import train

ROOT = Path(__file__).resolve().parents[2]
QUIET = Console(quiet=True)
FILES = ('learner.npz', 'replay.npz', 'episode.npz', 'rest.json')


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A finished run whose last checkpoint is in mid-episode; copy it before you spoil it."""
    folder = tmp_path_factory.mktemp('runs') / 'trained'
    assert train(folder, load_settings(), small_run(90), resume=False, console=QUIET)
    return folder


@pytest.fixture
def spoilt(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / 'spoilt')


def newest(folder):
    (found,) = (folder / 'checkpoints').iterdir()
    return found


def test_a_checkpoint_holds_json_and_plain_arrays(trained):
    found = newest(trained)
    assert sorted(path.name for path in found.iterdir()) == sorted(FILES)
    json.loads((found / 'rest.json').read_text())
    for name in FILES[:-1]:
        with np.load(found / name, allow_pickle=False) as arrays:
            assert all(arrays[key].dtype.kind in 'fib' for key in arrays)


def test_the_settings_of_a_run_come_back_as_they_were(settings, trained):
    assert read_settings(trained) == settings


def test_a_checkpoint_before_the_first_step_begins_as_a_fresh_run_does(settings, tmp_path):
    run = small_run(70)
    begin_run(tmp_path, settings, run)

    def fresh():
        return make_model(settings, run, make_env(settings, run), tmp_path / 'logs')

    expected = fresh()
    expected.learn(70)
    save_checkpoint(tmp_path, fresh())
    np.random.seed(7)  # noqa: NPY002 - what stable-baselines3 draws from
    found = load_checkpoint(tmp_path, run)
    found.learn(70, reset_num_timesteps=False)
    for one, other in zip(found.policy.parameters(), expected.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_no_plain_value_of_a_learner_is_forgotten(settings, tmp_path):
    run = small_run(90)
    begin_run(tmp_path, settings, run)
    model = make_model(settings, run, make_env(settings, run), tmp_path / 'tensorboard')
    model.learn(90)
    model.shield_moved += [True, False]
    save_checkpoint(tmp_path, model)
    again = load_checkpoint(tmp_path, run)
    plain = (bool, int, float, str, list, deque, type(None))
    others = ('start_time', '_online', '_targets')  # for the log; made of the networks
    kept = {
        key: value
        for key, value in vars(model).items()
        if isinstance(value, plain) and key not in others
    }
    assert {key: getattr(again, key) for key in kept} == kept
    assert {'num_timesteps', 'shield_moved', 'beta', '_n_updates', 'ep_info_buffer'} <= kept.keys()


@pytest.mark.parametrize('file', FILES)
def test_a_truncated_checkpoint_is_refused_with_advice(spoilt, file):
    saved = newest(spoilt) / file
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(RunError, match=r'damaged .*; remove it and resume from another'):
        load_checkpoint(spoilt, read_run(spoilt))


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('format', 2),
        ('beta', 'much'),
        ('actions', {'bit_generator': 'MT19937'}),
        ('random', {}),
        ('environment', None),
        ('episodes', 7),
    ],
)
def test_a_checkpoint_that_says_nonsense_is_refused(spoilt, key, value):
    path = newest(spoilt) / 'rest.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(RunError, match='damaged'):
        load_checkpoint(spoilt, read_run(spoilt))


def test_another_simulator_is_noticed_by_where_the_same_actions_lead(spoilt):
    path = spoilt / 'config.json'
    content = json.loads(path.read_text())
    content['settings']['plant']['friction']['coulomb_nm'] *= 1.001
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match='does not come where it was when its last actions'):
        load_checkpoint(spoilt, read_run(spoilt))


def test_a_checkpoint_of_the_format_that_could_execute_code_is_not_read(spoilt, tmp_path):
    canary = tmp_path / 'canary'
    (newest(spoilt) / 'rest.pkl').write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(RunError, match=r'older version, in a format that can execute code.*start'):
        load_checkpoint(spoilt, read_run(spoilt))
    assert not canary.exists()


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(RunError, match='has no checkpoint yet'):
        load_checkpoint(tmp_path, small_run(5))


# The result


def test_the_networks_of_a_result_are_those_that_stable_baselines3_would_load(trained):
    own = load_network(trained)
    theirs = ShieldedSAC.load(trained / 'model.zip', device='cpu').policy
    assert own.state_dict().keys() == theirs.state_dict().keys()
    for name, weight in own.state_dict().items():
        assert torch.equal(weight, theirs.state_dict()[name])
    assert not own.training


@pytest.mark.parametrize('controller', ['policy', 'bank'])
def test_sizes_that_a_configuration_does_not_state_are_those_of_the_weights(
    settings, tmp_path, controller
):
    from training.learn.run import settings_of

    run = small_run(5, controller=controller)
    own = settings_of(settings, run)
    finished_run(tmp_path / 'run', own, controller=controller)
    extractor = load_network(tmp_path / 'run').actor.features_extractor
    assert extractor.config.num_features == (11 if controller == 'policy' else 11 + 2 * 47)


def replace_weights(path, data):
    """Put other bytes in place of the weights of a model.zip."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, 'w') as archive:
        for name, content in (members | {'policy.pth': data}).items():
            archive.writestr(name, content)


def saved_by_torch(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    'weights',
    [
        {},
        {'actor.features_extractor.token_map': torch.zeros(11, 11)},
        {
            'actor.features_extractor.token_map': torch.zeros(10, 10),
            'actor.mu.bias': torch.zeros(8),
        },
        [1, 2],
    ],
)
def test_weights_of_another_network_are_refused(spoilt, weights):
    replace_weights(spoilt / 'model.zip', saved_by_torch(weights))
    with pytest.raises(RunError, match=r'model\.zip: damaged'):
        load_network(spoilt)


def test_a_result_for_three_joints_is_read_as_one(spoilt):
    policy = build_policy(NetworkConfig('incrt', 1, 5, num_joints=3, tokens='error_scaled'))
    replace_weights(spoilt / 'model.zip', saved_by_torch(policy.state_dict()))
    content = json.loads((spoilt / 'config.json').read_text())
    content['settings']['arm']['joint_names'] = ['a', 'b', 'c']
    (spoilt / 'config.json').write_text(json.dumps(content))
    found = load_network(spoilt)
    assert found.actor.features_extractor.config == policy.actor.features_extractor.config
    assert found.action_space.shape == (12,)
    del content['settings']['arm']
    (spoilt / 'config.json').write_text(json.dumps(content))
    with pytest.raises(RunError, match=r'config\.json: expected settings\.arm\.joint_names'):
        load_network(spoilt)


def test_more_weights_than_any_network_has_are_refused(spoilt, monkeypatch):
    monkeypatch.setattr(module, 'MOST_BYTES', 1000)
    with pytest.raises(RunError, match='at most 1000 bytes of weights'):
        load_network(spoilt)


def test_a_result_is_complete_or_absent(settings, tmp_path, monkeypatch):
    run = small_run(5)
    model = make_model(settings, run, make_env(settings, run), tmp_path / 'logs')
    monkeypatch.setattr(module, 'sync', lambda path: (_ for _ in ()).throw(OSError('full')))
    with pytest.raises(OSError, match='full'):
        save_result(tmp_path, model)
    assert not (tmp_path / 'model.zip').exists()


# Nothing is executed


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


HOOK = """
import sys
def note(event, args):
    if event == 'pickle.find_class':
        raise SystemExit(f'unpickled {args}')
sys.addaudithook(note)
import pickle
try:
    pickle.loads(pickle.dumps(len))
except SystemExit:
    print('hears', flush=True)
"""
RESUME = 'import training.train as m\nprint(m.main(["--resume", RUN]))'
EVALUATE = (
    'import training.evaluate as m\n'
    'words = ["--plant", "rk4", "--tau-z", "2", "--rollouts", "1", "--jobs", "1"]\n'
    'print(m.main(["--run", RUN, *words]))'
)
EXPORT = 'import training.export as m\nprint(m.main(["--run", RUN, "--out", RUN + ".metactl"]))'


def run_in(folder, code):
    """Run a command on a run directory in a process in which nobody may unpickle."""
    return subprocess.run(
        [sys.executable, '-c', f'{HOOK}RUN = {str(folder)!r}\n{code}'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)},
    )


@pytest.mark.parametrize('code', [RESUME, EVALUATE, EXPORT])
def test_nobody_unpickles_anything(spoilt, code):
    done = run_in(spoilt, code)
    assert done.stdout.split()[:1] == ['hears'], done.stderr
    assert done.stdout.split()[-1] == '0', done.stdout + done.stderr


@pytest.mark.parametrize('place', [*FILES, 'model.zip', 'data', 'policy.pth', 'torch.save'])
def test_a_canary_anywhere_in_a_run_does_not_sing(spoilt, tmp_path, place):
    canary = tmp_path / 'canary'
    payload = pickle.dumps(Canary(canary))
    if place in FILES:
        objects = io.BytesIO()
        np.savez(objects, actions=np.array([Canary(canary)], dtype=object))
        is_json = place == 'rest.json'
        (newest(spoilt) / place).write_bytes(payload if is_json else objects.getvalue())
        with pytest.raises(RunError, match='damaged'):
            load_checkpoint(spoilt, read_run(spoilt))
    elif place == 'data':  # what stable-baselines3 would unpickle; here it is not even read
        with zipfile.ZipFile(spoilt / 'model.zip') as archive:
            weights = torch.load(io.BytesIO(archive.read('policy.pth')), weights_only=True)
        save_to_zip_file(spoilt / 'model.zip', {'x': Canary(canary)}, {'policy': weights})
        load_network(spoilt)
    else:
        if place == 'model.zip':
            (spoilt / place).write_bytes(payload)
        else:
            data = payload if place == 'policy.pth' else saved_by_torch({'a': Canary(canary)})
            replace_weights(spoilt / 'model.zip', data)
        with pytest.raises(RunError, match=r'model\.zip: damaged'):
            load_network(spoilt)
    assert not canary.exists()
    pickle.loads(payload)
    assert canary.exists()  # the canary would have sung


def test_a_run_can_be_resumed_with_another_number_of_steps_left(settings, spoilt):
    """The checkpoint of a finished run is in mid-episode; from there it goes on."""
    run = replace(read_run(spoilt), steps=95)
    (spoilt / 'model.zip').unlink()
    assert train(spoilt, settings, run, resume=True, console=QUIET)
    assert load_checkpoint(spoilt, run).num_timesteps == 95
