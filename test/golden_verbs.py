# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON of every command that runs in seconds without ROS, for `test/golden/verbs.json`.

    PYTHONPATH=. python test/golden_verbs.py --write [NAME...]    # keep what this code says

Commands run in this process as their users call them, only smaller: fewer rollouts, one payload,
shorter episodes, a benchmark of two regimes, a run of 60 steps that begins to learn after 30.

Kept are exit codes, all keys and all values, but for those of VOLATILE: versions, commit and
command line (`versions`, `exported_with`, `code`, `commit`, `command`), and how long something
took (`took_s`, `cell_seconds`). Of paths only what is below the checkout, or the test's folder.

Left out are:

    metactl up, demo, bench, record, hil    they need ROS, and most of what they say is time
    metactl replay                          is kept with its bags, see golden_bags.py
    training.bench                          says nothing but time
    training.sweep                          trains and evaluates in processes of their own, which
                                            is `train` and `evaluate` again; it takes a minute
    training.grid                           the same; here only what it makes of results that are
                                            there
    training.paper_study                    writes a page and pictures, no JSON
    weights, and golden vectors of export   are no JSON; judgements and records tell of them
"""

import argparse
from contextlib import redirect_stdout
import io
import json
from pathlib import Path
import sys
import tempfile

from golden_package import made_runs, rounding, run_command, runs_of_paper, smaller
from golden_values import commit, read_json, ROOT, without, write_json

FILE = 'verbs.json'
VOLATILE = (
    *('versions', 'code', 'commit', 'command', 'exported_with'),
    *('took_s', 'cell_seconds'),
)
POLICY = ROOT / 'config' / 'policies' / 'paper_sac.metactl'
RUN = ('--model', 'incrt', '--heads', 2, '--window', 5, '--steps', 60, '--plant', 'rk4')
SMALL = ('--plant', 'rk4', '--rollouts', 2, '--tau-z', 2, '--jobs', 1)


def inspect(out):
    said = io.StringIO()
    with redirect_stdout(said):
        code = run_command('metactl', 'inspect', POLICY)
    return code, said.getvalue().splitlines()


def evaluate(out):
    words = ('--controller', 'ct', 'slotine_li_memory', *SMALL)
    return _written('evaluate', words, out, '--out', out, '--json', out / 'all.json')


def evaluate_bundle(out):
    words = ('--run', POLICY, *SMALL)
    return _written('evaluate', words, out, '--out', out, '--json', out / 'all.json')


def train(out):
    """Train, judge, evaluate and export one run: all JSON that is written on the way."""
    run = out / 'run'
    code = run_command('train', *RUN, '--device', 'cpu', '--seed', 3, '--out', run)
    found = {name: _read(run / f'{name}.json') for name in ('config', 'judgements')}
    words, bundle = ('--run', run, *SMALL), out / 'run.metactl'
    judged, found['evaluate'] = _written(
        'evaluate', words, out, '--out', out, '--json', out / 'all.json'
    )
    exported = run_command('export', '--run', run, '--out', bundle)
    found['contract'] = _read(bundle / 'contract.json')
    return [code, judged, exported], found


def report(out):
    (out / 'runs.json').write_text(json.dumps(made_runs()))
    baseline = ROOT / 'results' / 'baseline_rk4.json'
    code = run_command('report', out / 'runs.json', baseline, '--out', out)
    return code, _read(out / 'verdict.json')


def report_paper(out):
    (out / 'runs.json').write_text(json.dumps(runs_of_paper()))
    code = run_command('report', out / 'runs.json', '--paper', '--out', out)
    return code, _read(out / 'verdict.json')


def benchmark(out):
    words = ('--regime', 'tau_2', 'encoder_12bit', '--cells', out / 'cells', '--jobs', 1)
    return _written('benchmark', words, out, '--page', out / 'page.md', '--out', out / 'all.json')


def false_alarms(out):
    words = ('--seconds', 0.1, '--regime', 'velocity_noise', '--jobs', 1)
    return _written('false_alarms', words, out, '--out', out / 'all.json')


def tune(out):
    words = ('--rival', 'ct_integral', '--for', 'nominal', '--drawn', 1, '--refined', 1)
    (out / 'classical').mkdir()
    where = ('--jobs', 1, '--folder', out / 'classical', '--out', out / 'all.json')
    code, found = _written('tune', words, out, *where)
    return code, {'found': found, 'yaml': (out / 'classical' / 'nominal.yaml').read_text()}


def phase1(out):
    words = ('--tau-z', 2, '--windows', 40, '--window', 8, '--bootstrap', 5)
    return _written('phase1', words, out, '--out', out, '--json', out / 'all.json')


def lyapunov_fit(out):
    return _written('lyapunov_fit', ('--steps', 5), out, '--out', out / 'all.json')


def networks(out):
    return _written('networks', ('--counts',), out, '--json', out / 'all.json')


def grid(out):
    """Rank runs that are there: those with an even number of heads failed."""
    words = ('--phase1', ROOT / 'results' / 'phase1.json', '--windows', 20, '--paper')
    code = run_command('grid', *words, '--plant', 'rk4', '--out', out)
    return code, _read(out / 'grid.json')


VERBS = {
    verb.__name__: verb
    for verb in (
        *(inspect, evaluate, evaluate_bundle, train, report, report_paper, benchmark),
        *(false_alarms, tune, phase1, lyapunov_fit, networks, grid),
    )
}


def _written(name, words, out, *where):
    return run_command(name, *words, *where), _read(out / 'all.json')


def _read(path):
    return json.loads(path.read_text(encoding='utf-8'))


def say(name, folder):
    """Return the exit code and the JSON of a command, without what is volatile."""
    with smaller():
        code, found = VERBS[name](Path(folder))
    told = json.loads(json.dumps(found).replace(str(folder), 'FOLDER').replace(str(ROOT), 'ROOT'))
    return {'exit_code': code, 'said': without(told, VOLATILE)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', nargs='*', choices=VERBS, required=True, metavar='NAME')
    names = parser.parse_args().write
    kept = read_json(FILE)['verbs'] if names else {}
    for name in names or VERBS:
        with tempfile.TemporaryDirectory() as folder:
            kept[name] = say(name, folder)
    write_json(FILE, {'commit': commit(), 'rounding': rounding(), 'verbs': kept})
    return 0


if __name__ == '__main__':
    sys.exit(main())
