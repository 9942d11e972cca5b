# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The page on what each difference to the paper is worth."""

from pathlib import Path

import pytest
from support.made_records import of_study

from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from metactl_ros.settings import load_file
from training.differences_page import gather, main, page_of, UNCHANGED
from training.learn.run import load_differences
from training.records import run_from
from training.sweep import expand, Study

ROOT = Path(__file__).resolve().parents[2]
STUDY = load_file(Study, ROOT / 'config/studies/differences.yaml', '')
WANTED = expand(STUDY)


def records(deltas, **changes):
    """Return a record per delta, by difference, seeds in the order of the study."""
    found = []
    for name, own in deltas.items():
        runs = [run for run in WANTED if (run.difference or UNCHANGED) == name]
        found += [
            of_study(run, delta, difference=run.difference, **changes)
            for run, delta in zip(runs, own, strict=False)
        ]
    return found


def gathered(deltas, **changes):
    made = [run_from(record, f'{i}.json') for i, record in enumerate(records(deltas, **changes))]
    return gather(STUDY, made)


def page(deltas, **changes):
    return page_of(gathered(deltas, **changes), load_differences())


def line(text, name):
    return next(row for row in text.splitlines() if row.startswith(f'| {name} |'))


def test_the_verdict_names_what_moves_delta_most_and_what_is_shown():
    text = page(
        {
            UNCHANGED: [-80.0, -81.0, -79.0],
            'no_bias': [-60.0, -61.0, -59.0],
            'heavy_arm': [-78.0, -83.0, -80.0],
            'strict_shield': [-85.0],
        }
    )
    assert 'Unchanged, such a run reaches -80.0 %' in text
    assert '`no_bias` matters most: +20.0 points (+17.7 to +22.3), 79 % of that gap' in text
    assert 'Nearest to the paper comes `no_bias` with -60.0 %' in text
    assert 'excludes zero for `no_bias` (+20.0), `strict_shield` (-5.0)' in text
    assert 'it does not for `heavy_arm` (-0.3)' in text
    assert 'Without an interval' not in text
    alone = page({UNCHANGED: [-80.0], 'no_bias': [-60.0]})
    assert 'for none; it does not for none. Without an interval: `no_bias` (+20.0)' in alone


def test_what_moved_delta_furthest_is_not_said_to_matter_while_its_interval_holds_zero():
    text = page({UNCHANGED: [-73.0, -67.0], 'no_bias': [-37.0]})
    assert 'Of 12 differences 1 were run. `no_bias` moved delta furthest: +33.0 points' in text
    assert 'that it matters is not shown' in text
    assert 'matters most' not in text


def test_what_makes_a_run_better_can_matter_most_as_well():
    text = page({UNCHANGED: [-50.0, -51.0], 'no_bias': [-45.0, -46.0], 'heavy_arm': [-90, -91]})
    assert '`heavy_arm` matters most: -40.0 points' in text
    assert 'of that gap' not in text


def test_a_row_has_seeds_delta_shift_interval_and_its_own_baseline():
    text = page({UNCHANGED: [-80.0, -82.0], 'heavy_arm': [-70.0, -74.0]}, baseline_rmse=0.0964)
    cells = [cell.strip() for cell in line(text, '`heavy_arm`').split('|')[1:-1]]
    assert cells[1:4] == ['2', '-72.0 ± 2.83', '+9.0']
    # Standard error sqrt(8 / 2 + 2 / 2), 25 / 17 degrees of freedom, t = 6.2.
    assert cells[4] == '-4.8 to +22.8'
    assert cells[5] == '96'


def test_what_was_not_run_is_in_the_table_and_in_the_list():
    text = page({UNCHANGED: [-80.0]})
    assert 'cannot be said yet' in text
    assert '| 0 | not run |' in line(text, '`no_bias`')
    assert '- no_bias: seed 42, 43, 44' in text
    assert f'- {UNCHANGED}: seed 43, 44' in text
    assert f'1 of {len(WANTED)} runs are done' in text


def test_a_run_without_an_rmse_has_no_mean_and_is_counted():
    text = page({UNCHANGED: [-80.0, -82.0], 'no_bias': [-50.0, None]})
    row = line(text, '`no_bias`')
    assert '| 2 | no RMSE | - | - |' in row
    assert '| 20 |' in row


def test_runs_of_other_commits_and_unknown_differences_are_refused():
    mixed = records({UNCHANGED: [-80.0]}) + records({'no_bias': [-50.0]}, commit='f' * 12)
    with pytest.raises(ConfigError, match='One commit must have made all runs'):
        gather(STUDY, [run_from(record, 'made.json') for record in mixed])
    with pytest.raises(ConfigError, match='steps: expected 5000, found 50000'):
        gathered({UNCHANGED: [-80.0]}, steps=50_000)
    unknown = records({UNCHANGED: [-80.0]})[0] | {'difference': 'no_gravity'}
    with pytest.raises(ConfigError, match='seed 42, difference no_gravity; add it to the study'):
        gather(STUDY, [run_from(unknown, 'made.json')])


def test_the_page_is_made_by_one_command_from_a_folder_of_records(tmp_path):
    for number, record in enumerate(records({UNCHANGED: [-80.0, -81.0], 'no_bias': [-50.0]})):
        write_json(tmp_path / 'results' / f'{number}.json', record)
    target = tmp_path / 'page.md'
    assert main(['--results', str(tmp_path / 'results'), '--out', str(target)]) == 0
    assert '`no_bias` matters most' in target.read_text()
    assert main(['--results', str(tmp_path / 'results'), '--out', str(target / 'p.md')]) == 2


def test_the_kept_page_is_that_of_the_kept_records(tmp_path):
    target = tmp_path / 'page.md'
    results, kept = ROOT / 'results/study_differences', ROOT / 'docs/paper_differences_measured.md'
    assert main(['--results', str(results), '--out', str(target)]) == 0
    assert target.read_text() == kept.read_text()
