# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The judgements of a run: at their step, each once, and none of them felt by the training."""

from functools import partial
import json

import numpy as np
import pytest
from rich.console import Console
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from support import bundles
import torch

from metactl_ros.baselines import ControllerSpec
from metactl_ros.files import write_json
from training import evaluate
from training.learn.judgements import (
    FILE,
    head_report_of,
    inspect_actor,
    Judgements,
    read_judgements,
    record_actor,
)
from training.learn.run import make_env, make_model, RunError
from training.train import train, TrainingCallback

QUIET = Console(quiet=True)
torch.set_num_threads(1)
small_run = partial(bundles.small_run, heads=2)


@pytest.fixture
def often(monkeypatch):
    """Judge every 50 steps, by an error that costs nothing and tells policies apart."""
    monkeypatch.setattr('training.train.JUDGE_EVERY_STEPS', 50)

    def error(settings, run, policy):
        if policy is None:
            return 0.1
        window = np.ones((run.window, 11))
        return 0.2 + 0.1 * float(policy(window).sum() / 8.0)

    monkeypatch.setattr('training.train.mean_rmse', error)


def steps_of(folder):
    return [entry['step'] for entry in read_judgements(folder)]


def test_a_run_is_judged_every_so_often_and_at_its_end(settings, tmp_path, often):
    assert train(tmp_path, settings, small_run(), resume=False, console=QUIET)
    found = read_judgements(tmp_path)
    assert [entry['step'] for entry in found] == [50, 100, 150, 200, 230]
    assert all(entry['delta_percent'] > 0.0 for entry in found)
    (early,), (late,) = found[0]['layers'], found[-1]['layers']
    assert early['gradient_norm'] == [None, None]  # nothing was learnt in the first 60 steps
    assert min(late['gradient_norm']) > 0.0
    for name in ('entropy', 'output_share', 'payload_sensitivity'):
        assert len(late[name]) == 2
        assert early[name] != late[name]
    assert len(found[-1]['payload_sensitivity']) == 8
    assert 0.0 <= found[-1]['shield_moved_percent'] <= 100.0


def test_a_run_whose_end_is_due_anyway_is_judged_once_there(settings, tmp_path, often):
    assert train(tmp_path, settings, small_run(100), resume=False, console=QUIET)
    assert steps_of(tmp_path) == [50, 100]


@pytest.mark.parametrize('stop_at', [40, 100, 130])  # 100 is judged itself
def test_a_stopped_run_is_judged_as_if_nothing_had_happened(
    settings, tmp_path, monkeypatch, often, stop_at
):
    run, real = small_run(), TrainingCallback._on_step
    assert train(tmp_path / 'whole', settings, run, resume=False, console=QUIET)

    def interrupted(self):
        self.must_stop = self.must_stop or self.num_timesteps == stop_at
        return real(self)

    monkeypatch.setattr(TrainingCallback, '_on_step', interrupted)
    assert not train(tmp_path / 'halves', settings, run, resume=False, console=QUIET)
    monkeypatch.setattr(TrainingCallback, '_on_step', real)
    assert train(tmp_path / 'halves', settings, run, resume=True, console=QUIET)
    whole, halves = (read_judgements(tmp_path / name) for name in ('whole', 'halves'))
    assert halves == whole


@pytest.mark.parametrize(('saved_at', 'killed_at'), [(60, 130), (100, 120), (220, 230)])
def test_a_run_that_was_killed_is_judged_as_if_nothing_had_happened(
    settings, tmp_path, monkeypatch, often, saved_at, killed_at
):
    run, real, judge = small_run(), TrainingCallback._on_rollout_start, TrainingCallback.judge
    assert train(tmp_path / 'whole', settings, run, resume=False, console=QUIET)

    def killed(self):
        real(self)
        if self.num_timesteps == saved_at:
            self.save()
        if self.num_timesteps == killed_at:
            raise KeyboardInterrupt

    def killed_after(self):
        judge(self)
        if self.num_timesteps == killed_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingCallback, '_on_rollout_start', killed)
    monkeypatch.setattr(TrainingCallback, 'judge', killed_after)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / 'halves', settings, run, resume=False, console=QUIET)
    monkeypatch.setattr(TrainingCallback, '_on_rollout_start', real)
    monkeypatch.setattr(TrainingCallback, 'judge', judge)
    assert train(tmp_path / 'halves', settings, run, resume=True, console=QUIET)
    whole, halves = (read_judgements(tmp_path / name) for name in ('whole', 'halves'))
    assert halves == whole


def test_a_run_that_begins_again_forgets_what_another_was_judged(tmp_path):
    write_json(tmp_path / FILE, [{'step': 50}, {'step': 100}])
    judgements = Judgements(tmp_path, 0)
    assert not judgements.has(50)
    judgements.add({'step': 50, 'delta_percent': -1.0})
    assert read_judgements(tmp_path) == [{'step': 50, 'delta_percent': -1.0}]


@pytest.mark.parametrize('text', ['[{"step": 5', '{"step": 5}'])
def test_a_damaged_file_is_refused_with_advice(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunError, match=r'judgements\.json: .*remove it to go on without'):
        read_judgements(tmp_path)


def test_tensorboard_gets_a_judgement_at_its_own_step(settings, tmp_path, often, monkeypatch):
    seen, real = {}, Logger.dump

    def dump(self, step=0):
        if 'judge/delta_percent' in self.name_to_value:
            seen[step] = dict(self.name_to_value)
        real(self, step)

    monkeypatch.setattr(Logger, 'dump', dump)
    train(tmp_path, settings, small_run(120), resume=False, console=QUIET)
    assert list(seen) == [50, 100, 120]
    for entry in read_judgements(tmp_path):
        found, share = seen[entry['step']], entry['layers'][0]['output_share']
        assert found['judge/delta_percent'] == pytest.approx(entry['delta_percent'], rel=1e-5)
        assert found['heads/0/1/output_share'] == pytest.approx(share[1], rel=1e-5)


def test_a_result_holds_how_the_run_was_trained_and_judged(settings, tmp_path, often):
    run = small_run(120, model='transformer', heads=4)
    train(tmp_path / 'run', settings, run, resume=False, console=QUIET)
    words = ['--run', str(tmp_path / 'run'), '--tau-z', '2', '--rollouts', '1', '--jobs', '1']
    assert evaluate.main([*words, '--out', str(tmp_path)]) == 0
    record = json.loads((tmp_path / 'run_rk4_tau2_seed42.json').read_text())
    begun = json.loads((tmp_path / 'run' / 'config.json').read_text())
    names = ('model', 'heads', 'window', 'tau_z', 'seed')
    assert [record[name] for name in names] == ['transformer', 4, 5, 2.0, 1]
    assert {'delta_percent', 'rmse_by_payload', 'num_lost'} <= set(record)
    assert record['training'] == {n: begun[n] for n in ('code', 'command', 'versions')}
    assert record['commit'] == begun['code']
    assert record['judgements'] == read_judgements(tmp_path / 'run')
    assert record['head_report']['step'] == 120
    assert [len(layer['entropy']) for layer in record['head_report']['layers']] == [4, 4]


def test_without_a_judgement_there_is_no_head_report(tmp_path):
    assert read_judgements(tmp_path) == []
    assert head_report_of([]) is None


def test_code_that_goes_on_with_the_run_of_another_is_named(
    settings, tmp_path, often, monkeypatch
):
    run = small_run(60)
    assert train(tmp_path, settings, run, resume=False, console=QUIET)
    content = json.loads((tmp_path / 'config.json').read_text())
    write_json(tmp_path / 'config.json', content | {'code': 'first'})
    for code in ('first', 'second', 'second'):
        monkeypatch.setattr('training.learn.run.code_of_checkout', lambda code=code: code)
        assert train(tmp_path, settings, run, resume=True, console=QUIET)
    facts = evaluate.describe(ControllerSpec('run', learned=tmp_path))
    assert facts['training']['resumed_with'] == ['second']
    assert facts['commit'] == 'first, second'


class Looking(BaseCallback):
    """Looks at the network before every tenth step, as the watch does."""

    def _on_rollout_start(self):
        if self.num_timesteps and self.num_timesteps % 10 == 0:
            self.found = inspect_actor(self.model.actor, self.model.replay_buffer)
            record_actor(self.logger, self.found)
            self.logger.dump(self.num_timesteps)

    def _on_step(self):
        return True


@pytest.mark.parametrize(('model', 'heads'), [('incrt', 2), ('transformer', 4)])
def test_training_with_the_monitor_equals_training_without_to_the_bit(
    settings, tmp_path, model, heads
):
    run = small_run(111, model=model, heads=heads)
    found, looking = [], Looking()
    for callback in (looking, None):
        learner = make_model(settings, run, make_env(settings, run), tmp_path)
        learner.learn(run.steps, callback=callback)
        found.append([*learner.policy.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert learner._n_updates > 40
    for layer in looking.found.layers:  # training left the gradient of its last update in place
        assert layer.gradient_norm.min() > 0.0
