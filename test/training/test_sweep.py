# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import fcntl
import io
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console
import yaml

from metactl_ros.files import write_json
from metactl_ros.settings import load_file
from training import sweep
from training.learn.checkpoint import load_checkpoint
from training.learn.run import read_run
from training.sweep import expand, main, progress_of, Status, Study
from training.train import train

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / 'results' / 'train_robust_tau2.json').read_text())[0]
SMALL = {
    'presets': ['robust'],
    'models': ['mlp'],
    'sizes': [{'heads': 1, 'window': 5}],
    'tau_z': [2.0],
    'seeds': [1],
}
NAME = 'robust_mlp_k1_w5_tau2_seed1'
OTHER = 'robust_mlp_k1_w5_tau2_seed2'
FINISH = (
    'from pathlib import Path; import sys; Path(sys.argv[1]).write_bytes(b"PK\\5\\6" + bytes(18))'
)
COPY = 'import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])'
SLEEP = '; import time; time.sleep(60)'


def write_study(folder, *, steps=200, rollouts=2, plant='rk4', products=None, **changes):
    study = {'plant': plant, 'steps': steps, 'rollouts': rollouts}
    study['products'] = [SMALL | changes] if products is None else products
    path = folder / 'study.yaml'
    path.write_text(yaml.safe_dump(study))
    return path


def runs_of(folder, **changes):
    return expand(load_file(Study, write_study(folder, **changes), ''))


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Programs of a few lines in place of training.train and of training.evaluate.

    By name of a run, `trains` holds what to execute instead of an (empty) training that succeeds.
    """
    (tmp_path / 'out' / 'results').mkdir(parents=True)
    trains = {}

    def train(run, folder):
        return ['-c', trains.get(folder.name, FINISH), str(folder / 'model.zip')]

    def evaluate(run, folder, results, rollouts):
        facts = {'num_rollouts_per_payload': rollouts, 'seed': run.seed, 'model': run.model}
        prepared = tmp_path / f'{folder.name}.json'
        write_json(prepared, RECORD | facts | {'delta_percent': -12.3})
        return ['-c', COPY, str(prepared), str(results / f'{folder.name}_rk4_tau2_seed42.json')]

    monkeypatch.setattr(sweep, 'train_command', train)
    monkeypatch.setattr(sweep, 'evaluate_command', evaluate)
    return trains


def sweep_here(tmp_path, *words, **changes):
    study = write_study(tmp_path, **changes)
    return main([str(study), '--jobs', '1', '--out', str(tmp_path / 'out'), *words])


def test_a_study_is_the_product_of_its_lists(tmp_path):
    sizes = [{'heads': 4, 'window': 20}, {'heads': 7, 'window': 50}]
    runs = runs_of(tmp_path, models=['incrt', 'mlp'], sizes=sizes, tau_z=[1, 5], seeds=[1, 2, 3])
    assert len({run.name for run in runs}) == len(runs) == 2 * 2 * 2 * 3
    assert runs[0].name == 'robust_incrt_k4_w20_tau1_seed1'
    assert runs[-1].name == 'robust_mlp_k7_w50_tau5_seed3'
    assert {(run.steps, run.plant, run.hyper.gamma) for run in runs} == {(200, 'rk4', 0.9)}


def test_products_of_one_study_follow_one_another(tmp_path):
    products = [SMALL | {'seeds': [2]}, SMALL | {'presets': ['paper']}]
    names = [run.name for run in runs_of(tmp_path, products=products)]
    assert names == [OTHER, NAME.replace('robust', 'paper')]


def test_the_smoke_study_is_small():
    runs = expand(load_file(Study, ROOT / 'config/studies/smoke.yaml', ''))
    assert len(runs) == 2
    assert {(run.steps, run.plant) for run in runs} == {(200, 'rk4')}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'seed': [1]}, "unknown key 'seed'; did you mean 'seeds'?"),
        ({'seeds': []}, 'seeds: empty; list at least one entry'),
        ({'seeds': [1, 1]}, f'{NAME}: the study asks for it twice'),
        (
            {name: SMALL[name] * 30 for name in ('seeds', 'models', 'tau_z')},
            'products: expected at most 10000 runs, found 27000',
        ),
        ({'presets': ['papr']}, "['paper', 'robust', 'bank'], found 'papr'"),
        ({'models': ['incrd']}, "models[0]: expected one of 'incrt'"),
        ({'models': ['transformer']}, 'transformer has 4 heads, found 1'),
        ({'tau_z': [-1.0]}, 'tau_z: expected finite values above 0'),
        ({'rollouts': 0}, 'rollouts: expected finite values above 0'),
        ({'products': []}, 'products: empty'),
        ({'plant': 'bulet'}, "plant: expected one of 'rk4', 'bullet', 'pinocchio', found 'bulet'"),
    ],
)
def test_a_wrong_study_is_refused_as_a_whole(tmp_path, capsys, changes, message):
    assert sweep_here(tmp_path, **changes) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


def test_a_study_that_is_not_there_is_named(tmp_path, capsys):
    assert main([str(tmp_path / 'none.yaml')]) == 2
    assert 'none.yaml: cannot be read' in capsys.readouterr().err


def test_a_run_that_was_asked_for_differently_is_not_gone_on_with(tmp_path, capsys):
    (run,) = runs_of(tmp_path, steps=100)
    hyper = {name: getattr(run.hyper, name) for name in run.hyper.__slots__}
    found = {name: getattr(run, name) for name in run.__slots__} | {'hyper': hyper}
    write_json(tmp_path / 'out' / 'runs' / NAME / 'config.json', {'run': found})
    assert sweep_here(tmp_path, steps=200) == 2
    message = capsys.readouterr().err
    assert 'holds a run with another value of steps; choose another --out' in message


def test_ray_that_is_not_installed_names_the_command_that_installs_it(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, 'ray', None)
    assert sweep_here(tmp_path, '--engine', 'ray') == 2
    assert "pip install 'metactl_ros[sweep]'" in capsys.readouterr().err


def test_a_failing_run_does_not_stop_the_others(tmp_path, capsys, stand_ins):
    stand_ins[NAME] = 'import sys; print("begun"); sys.exit("no [space] left")'
    assert sweep_here(tmp_path, seeds=[1, 2]) == 1
    out, err = capsys.readouterr()
    assert re.search(rf'failed +{NAME} 0/200 \d+ s no \[space\] left\n', err)
    assert re.search(rf'done +{OTHER} 200/200 -12.3 % \d+ s\n', err)
    assert re.search(rf'failed +{NAME}', out)
    assert 'begun' in (tmp_path / 'out' / 'runs' / NAME / 'log.txt').read_text()


def test_a_failed_run_is_tried_again_and_its_log_is_kept(tmp_path, stand_ins, capsys):
    stand_ins[NAME] = 'raise ValueError("first")'
    assert sweep_here(tmp_path) == 1
    assert 'ValueError: first' in capsys.readouterr().err
    del stand_ins[NAME]
    assert sweep_here(tmp_path) == 0
    log = (tmp_path / 'out' / 'runs' / NAME / 'log.txt').read_text()
    assert log.index('ValueError: first') < log.rindex('$ python')


def test_a_killed_run_says_which_signal_it_was(tmp_path, capsys, stand_ins):
    stand_ins[NAME] = 'import os; os.kill(os.getpid(), 9)'
    assert sweep_here(tmp_path) == 1
    assert 'killed by signal 9' in capsys.readouterr().err


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_runs_under_way_and_begins_no_other(tmp_path, capsys, stand_ins, number):
    stand_ins[NAME] = f'import os; os.kill(os.getppid(), {int(number)}){SLEEP}'
    before = signal.getsignal(number)
    assert sweep_here(tmp_path, seeds=[1, 2]) == 3
    out, err = capsys.readouterr()
    assert 'stopped; the same command goes on' in err
    assert re.search(rf'stopped +{NAME}', out)
    assert re.search(rf'queued +{OTHER}', out)
    assert signal.getsignal(number) is before
    del stand_ins[NAME]
    assert sweep_here(tmp_path, seeds=[1, 2]) == 0


def test_a_file_named_stop_stops_a_sweep_from_anywhere(tmp_path, stand_ins):
    stop = tmp_path / 'out' / 'stop'
    stand_ins[NAME] = f'open({str(stop)!r}, "w"){SLEEP}'
    assert sweep_here(tmp_path, seeds=[1, 2]) == 3
    assert not stop.exists()


def test_a_run_that_checkpoints_at_somebodys_request_is_to_be_resumed(tmp_path, stand_ins):
    stand_ins[NAME] = 'import sys; sys.exit(3)'
    assert sweep_here(tmp_path) == 3


def test_two_sweeps_do_not_work_on_one_run(tmp_path, capsys, stand_ins, monkeypatch):
    monkeypatch.setattr(sweep, 'LOCK_PATIENCE_S', 0.2)
    folder = tmp_path / 'out' / 'runs' / NAME
    folder.mkdir(parents=True)
    with (folder / 'log.txt').open('w') as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert sweep_here(tmp_path) == 1
    assert 'another process works on it' in capsys.readouterr().err
    assert not (folder / 'model.zip').exists()


def test_a_result_with_fewer_rollouts_is_evaluated_again_but_not_trained(tmp_path, stand_ins):
    assert sweep_here(tmp_path, rollouts=2) == 0
    stand_ins[NAME] = 'raise ValueError("trained twice")'
    assert sweep_here(tmp_path, rollouts=20) == 0
    (path,) = (tmp_path / 'out' / 'results').iterdir()
    assert json.loads(path.read_text())['num_rollouts_per_payload'] == 20


def test_a_terminal_shows_a_table_and_failures(tmp_path, stand_ins):
    stand_ins[NAME] = 'raise ValueError("oh")'
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    runs = runs_of(tmp_path, seeds=[1, 2])
    with sweep.local_engine(1) as engine:
        board = sweep.sweep(runs, tmp_path / 'out', 2, engine, screen)
    assert [status.state for status in board.values()] == ['failed', 'done']
    shown = screen.file.getvalue()
    assert 'ValueError: oh' in shown
    assert 'elapsed' in shown


def test_the_table_has_on_top_what_goes_on(tmp_path):
    runs = {str(index): run for index, run in enumerate(runs_of(tmp_path, seeds=[1, 2, 3]))}
    board = {'0': Status('done', 200, -1.0), '1': Status('queued'), '2': Status('running', 50)}
    console = Console(file=io.StringIO(), width=80)
    console.print(sweep.table_of(board, runs))
    assert re.findall('done|queued|running', console.file.getvalue()) == [
        'running',
        'queued',
        'done',
    ]


def test_progress_is_read_from_checkpoints_and_from_judgements(tmp_path):
    assert progress_of(tmp_path) == (0, None)
    (tmp_path / 'checkpoints' / '00002300').mkdir(parents=True)
    (tmp_path / 'checkpoints' / '.00002600.17.partial').mkdir()
    assert progress_of(tmp_path) == (2300, None)
    judged = [{'step': 2500, 'delta_percent': -12.3}, {'step': 50_000, 'delta_percent': 3.4}]
    write_json(tmp_path / 'judgements.json', judged)
    assert progress_of(tmp_path) == (50_000, 3.4)
    (tmp_path / 'judgements.json').write_text('[')
    assert progress_of(tmp_path) == (2300, None)


def test_progress_is_read_from_what_training_really_writes(tmp_path, settings, monkeypatch):
    monkeypatch.setattr('training.train.JUDGE_EVERY_STEPS', 20)
    errors_rad = iter([0.2, 0.1, 0.12, 0.15])  # of the baseline; of the policy at 20, 40 and 50
    monkeypatch.setattr('training.train.mean_rmse', lambda *_: next(errors_rad))
    (run,) = runs_of(tmp_path, steps=50)
    assert train(tmp_path, settings, run, resume=False, console=Console(quiet=True))
    (saved,) = (tmp_path / 'checkpoints').iterdir()
    saved.rename(saved.with_name('00000030'))
    assert progress_of(tmp_path) == (50, -25.0)


def test_a_run_begins_again_if_it_has_no_checkpoint_and_resumes_if_it_has(tmp_path):
    (run,) = runs_of(tmp_path)
    (tmp_path / 'config.json').write_text('{}')
    assert f'--out={tmp_path}' in sweep.train_command(run, tmp_path)
    assert not (tmp_path / 'config.json').exists()
    (tmp_path / 'checkpoints' / '00000100').mkdir(parents=True)
    assert sweep.train_command(run, tmp_path)[-2:] == ['--resume', str(tmp_path)]


def sweep_apart(study, out, *words):
    return subprocess.Popen(
        [sys.executable, '-m', 'training.sweep', str(study), '--out', str(out), *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {'OMP_NUM_THREADS': '1'},
    )


def test_a_sweep_that_was_terminated_resumes_and_then_leaves_its_runs_alone(
    tmp_path, monkeypatch, capsys
):
    steps = 1400  # some seconds, as the last 400 update the networks
    study, out = write_study(tmp_path, steps=steps), tmp_path / 'out'
    child = sweep_apart(study, out, '--jobs', '1')
    folder = out / 'runs' / NAME
    deadline = time.monotonic() + 60.0
    while not (folder / 'tensorboard').exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # waits for the first step; there is nothing to subscribe to
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 3, errors
    assert 0 < load_checkpoint(folder, read_run(folder)).num_timesteps < steps
    assert not (folder / 'model.zip').exists()

    prepared = tmp_path / 'record.json'
    write_json(prepared, RECORD | {'num_rollouts_per_payload': 2})
    target = out / 'results' / f'{NAME}_rk4_tau2_seed42.json'
    target.parent.mkdir()
    command = ['-c', COPY, str(prepared), str(target)]
    monkeypatch.setattr(sweep, 'evaluate_command', lambda *_: command)
    again = [str(study), '--out', str(out), '--jobs', '1']
    assert main(again) == 0
    assert '--resume' in (folder / 'log.txt').read_text()
    assert load_checkpoint(folder, read_run(folder)).num_timesteps == steps

    log, made = (folder / 'log.txt').read_text(), (folder / 'model.zip').stat().st_mtime_ns
    capsys.readouterr()
    assert main(again) == 0
    assert capsys.readouterr().err.startswith(f'done    {NAME} {steps}/{steps}')
    assert (folder / 'model.zip').stat().st_mtime_ns == made
    assert (folder / 'log.txt').read_text() == log


def test_finished_records_are_collected_one_file_each(tmp_path, stand_ins):
    folder = tmp_path / 'kept'
    stand_ins[OTHER] = 'raise ValueError("oh")'
    assert sweep_here(tmp_path, '--collect', str(folder), seeds=[1, 2]) == 1
    (path,) = folder.iterdir()
    assert path.name == f'{NAME}.json'
    assert json.loads(path.read_text())['seed'] == 1
    path.unlink()
    del stand_ins[OTHER]
    assert sweep_here(tmp_path, '--collect', str(folder), seeds=[1, 2]) == 0
    assert {p.name for p in folder.iterdir()} == {f'{NAME}.json', f'{OTHER}.json'}


# A sweep with one child, which says that it is there, and that it was asked to end.
KILLED = """
import pathlib, sys
from training import sweep
folder = pathlib.Path(sys.argv[1])
with (folder / 'log.txt').open('w') as log:
    sweep.call(['-c', sys.argv[2], str(folder)], log, folder / 'stop')
"""
CHILD = """
import pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (folder / 'asked').touch())
(folder / 'begun').touch()
signal.pause()
"""


def test_a_run_whose_sweep_is_killed_is_asked_to_end(tmp_path):
    def wait_for(name):
        deadline = time.monotonic() + 240.0
        while not (tmp_path / name).exists() and time.monotonic() < deadline:
            time.sleep(0.02)  # another process' file: there is nothing to subscribe to
        return (tmp_path / name).exists()

    parent = subprocess.Popen([sys.executable, '-c', KILLED, str(tmp_path), CHILD], cwd=ROOT)
    assert wait_for('begun')
    parent.kill()
    parent.wait()
    assert wait_for('asked')


def test_a_sweep_waits_for_a_run_of_another_that_is_ending(tmp_path, stand_ins):
    folder = tmp_path / 'out' / 'runs' / NAME
    folder.mkdir(parents=True)
    log = (folder / 'log.txt').open('w')
    fcntl.flock(log, fcntl.LOCK_EX)
    ending = threading.Timer(0.5, log.close)
    ending.start()
    assert sweep_here(tmp_path) == 0
    ending.join()


def test_a_ray_cluster_does_the_same(tmp_path):
    pytest.importorskip('ray', reason="needs the extra `sweep`: pip install 'metactl_ros[sweep]'")
    child = sweep_apart(write_study(tmp_path), tmp_path / 'out', '--engine', 'ray', '--jobs', '1')
    out, errors = child.communicate(timeout=250)
    assert child.returncode == 0, errors
    assert re.search(rf'done +{NAME}', out)
    assert len(list((tmp_path / 'out' / 'results').iterdir())) == 1
