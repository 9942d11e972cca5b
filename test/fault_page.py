# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/faults.md from what was measured and kept in results/.

python test/fault_page.py
"""

import json
from pathlib import Path
import sys

from metactl_ros.hil.fault_table import comparison
from metactl_ros.hil.scenario import chosen_scenarios, load_scenario

ROOT = Path(__file__).parents[1]
SEEDS = (7, 8, 9)
"""Of the random faults that are kept."""
NOT_TOLD = """\
## What nobody can tell

- Coarse encoders that are cut off at exactly zero velocity, while the arm is held, say what they
  would say of an arm at rest. It shows with the next motion, after 0.05 rad of its reference.
  Until then the arm is without feedback, and may fall in NOMINAL. A drive that tells of a lost
  encoder should brake by itself. Finer sensors never read the same twice while anything moves, and
  are found frozen after 0.1 s.
- A sensor that freezes and has noise of its own is found by where the arm then goes, not by its
  readings.
- An encoder that slips by less than 0.16 rad from one state to the next is believed: a joint could
  have moved so far. So is a clock that drifts by less than 5 %.
- Zero torque lets an arm fall, and a process that stands still or is killed says nothing. The
  robot needs a watchdog, and must brake while `stop_request` is true, as the simulated one does.
"""


def kept(name, folder):
    """Return what a file of results holds; None if it is not there."""
    path = folder / name
    return json.loads(path.read_text()) if path.is_file() else None


def measured(folder):
    """Return what faults did to the arm before it was guarded, and what they do now."""
    before, now = (kept(f'faults_{when}.json', folder) or {} for when in ('before', 'after'))
    return [
        'What faults do to the arm: when the mode changes, how fast a joint becomes (its limit is',
        '8 rad/s), how far the arm is from its reference while the controller means to follow it,',
        'the largest command, and the longest pause between two. Before it was guarded, and now:',
        '`results/faults_before.json` and `results/faults_after.json`, each written by',
        '`python -m metactl_ros.hil.fault_table`. A trajectory that is refused, and a request',
        'that is not obeyed, need no other mode.',
        '',
        *comparison(before.get('scenarios', []), now.get('scenarios', [])),
        '',
    ]


def random_faults(folder):
    """Return what minutes of random faults led to."""
    lines = [
        '## Faults of every kind, at random',
        '',
        '`metactl hil --random --minutes 10 --seed N`: how many came, the fastest and the',
        'furthest that a joint got (limits 8 rad/s; 2.9 and 2.6 rad), and how many of the demands',
        'that hold of every run (`metactl_ros/hil/judge.py`) were not met.',
        '',
        '| seed | faults | commands | commands of others | speed, rad/s | position, rad | '
        'resets | not met |',
        '|---|---|---|---|---|---|---|---|',
    ]
    for seed in SEEDS:
        found = kept(f'random_faults_{seed}.json', folder)
        if found is None:
            continue
        unmet = [verdict['demand'] for verdict in found['verdicts'] if not verdict['has_passed']]
        cells = (
            seed,
            sum(found['faults_by_kind'].values()),
            found['commands_checked'],
            found['commands_of_others'],
            ', '.join(f'{x:.1f}' for x in found['largest_speed_radps']),
            ', '.join(f'{x:.2f}' for x in found['furthest_position_rad']),
            found['resets_of_fault'],
            '; '.join(unmet) or f'0 of {len(found["verdicts"])}',
        )
        lines.append('| ' + ' | '.join(map(str, cells)) + ' |')
    return [*lines, '']


def false_alarms(folder):
    """Return how often sound sensors were not believed."""
    found = kept('false_alarms.json', folder)
    if found is None:
        return []
    cells = found['cells']
    regimes = list(dict.fromkeys(cell['regime'] for cell in cells))
    table = {(cell['controller'], cell['regime']): cell for cell in cells}
    lines = [
        '## False alarms',
        '',
        'Sixty arms for a minute each, with sound sensors (`python -m training.false_alarms`):',
        'how many left NOMINAL. Arms that go more than 0.5 rad astray without any guard, whose',
        'controller does not control them there, are in brackets: their alarms are right.',
        '',
        '| controller | ' + ' | '.join(f'`{regime}`' for regime in regimes) + ' |',
        '|---|' + len(regimes) * '---|',
    ]
    for name in dict.fromkeys(cell['controller'] for cell in cells):
        row = []
        for regime in regimes:
            cell = table.get((name, regime))
            astray = cell and cell['num_astray_without_guard']
            text = '-' if cell is None else str(cell['num_false_alarms'])
            row.append(f'{text} ({astray} astray)' if astray else text)
        lines.append(f'| `{name}` | ' + ' | '.join(row) + ' |')
    return [*lines, '']


def hostile(folder):
    """Return how hostile files were answered."""
    lines = [
        '## Hostile files',
        '',
        'Each is given to what reads such files, in a process of its own: no traceback, no hang',
        'above 5 s, no abort.',
        '',
        '| what | how many | answered badly | slowest, s | written by |',
        '|---|---|---|---|---|',
    ]
    modules = {'bundles': 'bundles', 'bags': 'bags', 'yaml': 'yaml_files'}
    for what, module in modules.items():
        found = kept(f'hostile_{what}.json', folder)
        if found is not None:
            cells = (what, found['num_cases'], found['num_bad'], found['slowest_s'])
            lines.append('| ' + ' | '.join(map(str, cells)) + f' | `test/hostile/{module}.py` |')
    return [*lines, '']


def mutants(folder):
    """Return what happens without each protection."""
    lines = [
        '## Each protection, and what happens without it',
        '',
        'Each scenario of `config/faults/` passes on the real system (`make hil`) and fails when',
        'the protection it is about is switched off (`python test/hil_mutants.py`).',
        '',
        '| scenario | what happens | protection | without it | found then |',
        '|---|---|---|---|---|',
    ]
    for row in (kept('hil_mutants.json', folder) or {}).get('mutants', []):
        (file,) = chosen_scenarios([row['scenario']])
        found = row['failed_expectations'][0] if row['is_noticed'] else '**nothing: it survived**'
        cells = (f'`{row["scenario"]}`', load_scenario(file).title, row['protection'])
        lines.append('| ' + ' | '.join((*cells, row['mutant'], found)) + ' |')
    return lines


def page(folder=ROOT / 'results'):
    """Return docs/faults.md."""
    lines = [
        '# What is withstood, and what withstands it',
        '',
        'This page is written by `python test/fault_page.py` from `results/`.',
        '',
        *measured(folder),
        NOT_TOLD,
        *random_faults(folder),
        *false_alarms(folder),
        *hostile(folder),
        *mutants(folder),
    ]
    return '\n'.join(lines) + '\n'


if __name__ == '__main__':
    (ROOT / 'docs' / 'faults.md').write_text(page())
    sys.exit(0)
