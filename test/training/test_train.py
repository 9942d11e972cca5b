# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from rich.console import Console
from support.bundles import small_run
import torch

from metactl_ros.errors import ConfigError
from training.learn.checkpoint import load_checkpoint
from training.learn.run import choose_device, read_run, RunError
from training.train import main, train, TrainingCallback

ROOT = Path(__file__).resolve().parents[2]
QUIET = Console(quiet=True)


def state_of(folder, run):
    model = load_checkpoint(folder, run)
    env = model.get_env().envs[0].unwrapped
    optimisers = (model.actor.optimizer, model.critic.optimizer, model.ent_coef_optimizer)
    moments = [
        entry[name]
        for optimiser in optimisers
        for entry in optimiser.state.values()
        for name in ('exp_avg', 'exp_avg_sq')
    ]
    tensors = [*model.policy.state_dict().values(), *moments, model.log_ent_coef.detach()]
    arrays = [*(t.numpy() for t in tensors), *model.replay_buffer.state().values()]
    draws = [np.random.random(), torch.rand(1).item(), model.action_space.sample()]  # noqa: NPY002
    arrays += [np.asarray(x) for x in (*draws, env.np_random.random(), model.beta)]
    return [*arrays, np.asarray(model.num_timesteps)]


@pytest.mark.parametrize('stop_at', [40, 200])  # among the random first steps, and after them
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(
    settings, tmp_path, monkeypatch, stop_at
):
    run = small_run(400)
    assert train(tmp_path / 'whole', settings, run, resume=False, console=QUIET)
    real = TrainingCallback._on_step

    def interrupted(self):
        if self.num_timesteps == stop_at:
            signal.raise_signal(signal.SIGTERM)
        return real(self)

    monkeypatch.setattr(TrainingCallback, '_on_step', interrupted)
    assert not train(tmp_path / 'halves', settings, run, resume=False, console=QUIET)
    monkeypatch.setattr(TrainingCallback, '_on_step', real)
    assert train(tmp_path / 'halves', settings, run, resume=True, console=QUIET)
    whole, halves = (state_of(tmp_path / name, run) for name in ('whole', 'halves'))
    assert len(whole) == len(halves)
    for one, other in zip(whole, halves, strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(whole[-1]) == 400


def test_the_run_directory_is_complete_before_the_first_step(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(
        'training.train.make_model', lambda *_: pytest.fail(str(sorted(tmp_path.rglob('*'))))
    )
    with pytest.raises(pytest.fail.Exception, match=r'config\.json'):
        train(tmp_path / 'run', settings, small_run(10), resume=False, console=QUIET)
    content = json.loads((tmp_path / 'run' / 'config.json').read_text())
    assert content['run']['hyper']['gamma'] == 0.9
    assert {'settings', 'versions', 'command'} <= set(content)
    assert read_run(tmp_path / 'run') == small_run(10)


def test_a_run_is_not_overwritten(settings, tmp_path):
    train(tmp_path, settings, small_run(5), resume=False, console=QUIET)
    with pytest.raises(RunError, match='holds a run already; go on with --resume'):
        train(tmp_path, settings, small_run(5), resume=False, console=QUIET)


def test_killed_while_saving_it_leaves_a_checkpoint_that_loads(settings, tmp_path):
    """Fifty processes that save in a loop are killed at random moments of the first four saves."""
    run = small_run(30)
    train(tmp_path, settings, run, resume=False, console=QUIET)
    rng, num_interrupted, seen = np.random.default_rng(0), 0, []
    with subprocess.Popen(
        [sys.executable, '-c', FORKING, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    ) as parent:
        for _ in range(50):
            parent.stdin.write(f'{rng.uniform(0.0, 4.0)}\n')
            parent.stdin.flush()
            assert parent.stdout.readline().strip() == 'killed'
            num_interrupted += any((tmp_path / 'checkpoints').glob('.*.partial'))
            seen.append(load_checkpoint(tmp_path, run).num_timesteps)
        parent.stdin.close()
    assert seen == sorted(seen)
    assert seen[-1] > 1000
    assert num_interrupted > 10


# Loads once; for each line it forks a saver, and kills it after that many times as a save takes.
FORKING = """
import os, signal, sys, time
from pathlib import Path
from training.learn.checkpoint import load_checkpoint, save_checkpoint
from training.learn.run import read_run
folder = Path(sys.argv[1])
model = load_checkpoint(folder, read_run(folder))
model.num_timesteps += 1
begin = time.monotonic()
save_checkpoint(folder, model)
save_s = time.monotonic() - begin
for number, line in enumerate(sys.stdin, start=1):
    child = os.fork()
    if not child:
        model.num_timesteps = 1000 * number
        while True:
            save_checkpoint(folder, model)
            model.num_timesteps += 1
    time.sleep(save_s * float(line))  # the random moment of the kill
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print('killed', flush=True)
"""


def test_sigterm_writes_a_checkpoint_within_5_seconds(tmp_path):
    command = ['--window', '5', '--heads', '1', '--plant', 'rk4', '--out', str(tmp_path / 'run')]
    child = subprocess.Popen(
        [sys.executable, '-m', 'training.train', *command],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {'OMP_NUM_THREADS': '1'},
    )
    logs = tmp_path / 'run' / 'tensorboard'
    deadline = time.monotonic() + 60.0
    while not logs.exists() and time.monotonic() < deadline:
        time.sleep(0.1)  # waits for the first step; there is nothing to subscribe to
    begun_s = sum(psutil.Process(child.pid).cpu_times()[:2])
    while sum(psutil.Process(child.pid).cpu_times()[:2]) < begun_s + 0.5:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # the logs come just before it
    child.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 3, errors
    assert 'go on with: python -m training.train --resume' in errors
    assert time.monotonic() - asked < 5.0
    assert load_checkpoint(tmp_path / 'run', read_run(tmp_path / 'run')).num_timesteps > 0


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--resume', 'nowhere'], 'nowhere/config.json: cannot be read'),
        (['--model', 'incrd', '--out', 'RUN'], "unknown model 'incrd'; did you mean 'incrt'?"),
        (['--window', '0', '--out', 'RUN'], 'window'),
    ],
)
def test_wrong_use_ends_with_a_message_and_code_2(tmp_path, capsys, words, message):
    words = [str(tmp_path / 'run') if word == 'RUN' else word for word in words]
    assert main(words) == 2
    assert message in capsys.readouterr().err.replace('\n', ' ')


@pytest.mark.skipif(torch.cuda.is_available(), reason='this machine has a GPU')
def test_asking_for_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match='no GPU that torch can use; leave --device out'):
        choose_device('cuda')
    assert choose_device('auto') == choose_device('cpu') == 'cpu'


def test_without_the_lagrangian_beta_stays_zero_and_the_folder_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ['--model', 'mlp', '--heads', '1', '--window', '5', '--plant', 'rk4', '--steps', '20']
    assert main([*small, '--without-lagrangian']) == 0
    folder = tmp_path / 'runs/train/robust_mlp_k1_w5_tau2_beta0_seed42'
    assert read_run(folder).hyper.lagrangian_rate == 0.0
    assert load_checkpoint(folder, read_run(folder)).beta == 0.0


def test_a_checkpoint_of_another_window_is_not_resumed_and_the_message_says_what_to_do(
    settings, tmp_path, capsys
):
    train(tmp_path, settings, small_run(10), resume=False, console=QUIET)
    assert main(['--resume', str(tmp_path), '--window', '20']) == 2
    said = capsys.readouterr().err
    assert '--window 20' in said
    assert 'was begun with 5; leave it out to resume' in said
