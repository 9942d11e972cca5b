# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import copy
import csv
import json
from pathlib import Path

from matplotlib import image
import numpy as np
import pytest

from training import report
from training.report import main, parse_args

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ('forest', 'payload', 'ablation', 'seeds')
INCRT = {2.0: [-62.0, -58.0, -55.0, -51.0, -47.0], 5.0: [-64.7, -58.0, -34.3, 15.0, None]}
TRANSFORMER = {2.0: [-44.0, -41.0, -36.0, -33.0, -26.0], 5.0: [-45.0, -35.0, -28.0, -20.0, -15.0]}


@pytest.fixture(scope='module')
def baselines():
    """The kept evaluation of the fixed-gain controller, by tau_z."""
    kept = json.loads((ROOT / 'results' / 'baseline_rk4.json').read_text())
    return {record['tau_z']: record for record in kept}


def trained(baseline, delta, **changes):
    """Return the record of a run that changes the baseline's RMSE by delta percent."""
    record = copy.deepcopy(baseline)
    factor = 1.0 if delta is None else 1.0 + delta / 100.0
    record['rmse_by_payload'] = [factor * rmse for rmse in baseline['rmse_by_payload']]
    record |= {'controller': 'meta', 'delta_percent': delta, 'rmse': factor * baseline['rmse']}
    if delta is None:
        record |= {'rmse': None, 'num_lost': 20}
        record['rmse_by_payload'][-1] = record['rmse_std_by_payload'][-1] = None
    return record | changes


def cells(baselines, deltas, **changes):
    return [
        trained(baselines[tau_z], delta, seed=42 + number, **changes)
        for tau_z, own in deltas.items()
        for number, delta in enumerate(own)
    ]


@pytest.fixture(scope='module')
def records(baselines):
    incrt = {'model': 'incrt', 'heads': 7, 'window': 50, 'num_parameters': 241_000}
    transformer = {'model': 'transformer', 'heads': 4, 'window': 20, 'num_parameters': 265_000}
    return cells(baselines, INCRT, **incrt) + cells(baselines, TRANSFORMER, **transformer)


@pytest.fixture(scope='module')
def written(records, baselines, tmp_path_factory):
    """Report ten runs of two architectures and the baseline, as a user would."""
    folder = tmp_path_factory.mktemp('report')
    (folder / 'runs.json').write_text(json.dumps(records))
    (folder / 'ct.json').write_text(json.dumps([baselines[2.0], baselines[5.0]]))
    files = [str(folder / 'runs.json'), str(folder / 'ct.json')]
    assert main([*files, '--out', str(folder / 'out')]) == 0
    return folder / 'out'


def rows(path):
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def row(table, architecture, tau_z):
    keys = (architecture, f'{tau_z:.1f}')
    return next(r for r in table if (r['architecture'], r['tau_z']) == keys)


def report_on(records, tmp_path, *words):
    path = tmp_path / 'runs.json'
    path.write_text(json.dumps(records))
    return main([str(path), '--out', str(tmp_path / 'out'), *words])


def test_the_main_table_has_the_numbers_of_the_cells(written):
    table = rows(written / 'main.csv')
    assert [(r['tau_z'], r['architecture']) for r in table] == [
        (tau_z, name) for tau_z in ('2.0', '5.0') for name in ('ct', 'incrt', 'transformer')
    ]
    found = row(table, 'incrt', 2.0)
    assert float(found['delta_mean']) == pytest.approx(np.mean(INCRT[2.0]))
    assert float(found['delta_std']) == pytest.approx(np.std(INCRT[2.0], ddof=1))
    assert (found['n'], found['heads'], found['window']) == ('5', '7', '50')
    assert float(found['p_u']) == pytest.approx(1 / 252)
    assert float(found['p_u_holm']) == pytest.approx(2 / 252)
    assert float(found['d_low']) < float(found['d']) < float(found['d_high']) < 0.0
    assert (found['verdict'], found['reference']) == ('better', 'transformer K=4 W=20')
    assert row(table, 'transformer', 2.0)['p_u'] == row(table, 'ct', 2.0)['p_u'] == ''


def test_markdown_and_terminal_show_the_same_rows(written, records, tmp_path, capsys):
    text = (written / 'main.md').read_text()
    line = '| 2 s | incrt | 7 | 5 | 50 | 241,000 | -54.60 ± 5.86 | -2.87 | 0.004 | 0.008 |'
    assert line in text
    assert report_on(records, tmp_path) == 0
    shown = capsys.readouterr().out
    for word in ('241,000', '-54.60 ± 5.86', '-2.87', '0.008', 'no mean', '2/5'):
        assert word in shown


def test_failed_seeds_stay_in_every_table(written):
    found = row(rows(written / 'main.csv'), 'incrt', 5.0)
    assert (found['n'], found['num_failures'], found['num_diverged']) == ('5', '2', '2')
    # No mean without the lost seed; the median and the ranks count it as the worst.
    assert found['delta_mean'] == found['d'] == found['p_w'] == ''
    assert float(found['delta_median']) == -34.3
    assert 0.0 < float(found['p_u']) < 1.0
    text = (written / 'main.md').read_text()
    assert '| no mean |' in text
    assert 'seed 46: diverged (20 rollouts lost)' in text
    assert 'seed 45: diverged (delta +15.0 %)' in text
    runs = {(r['architecture'], r['tau_z'], r['seed']): r for r in rows(written / 'runs.csv')}
    assert len(runs) == 22
    lost = runs['incrt K=7 W=50', '5.0', '46']
    assert (lost['rmse'], lost['delta_percent'], lost['label']) == ('', '', 'diverged')
    assert runs['incrt K=7 W=50', '5.0', '44']['label'] == 'weak'
    assert runs['incrt K=7 W=50', '5.0', '42']['label'] == 'healthy'


def test_the_verdict_is_json_with_everything_in_it(written):
    verdict = json.loads((written / 'verdict.json').read_text())
    assert [c['verdict'] for c in verdict['comparisons']] == ['better', 'not shown']
    assert verdict['protocol']['plant'] == 'rk4'
    assert verdict['protocol']['settings.plant.friction.coulomb_nm'] == 2.0
    assert len(verdict['cells']) == 6
    assert {r['file'] for r in verdict['runs']} == {'runs.json', 'ct.json'}
    assert verdict['alpha'] == 0.05


def looks_drawn(path):
    pixels = image.imread(path)[..., :3]
    inked = np.any(pixels < 0.9, axis=-1).mean()
    return path.stat().st_size > 5_000 and min(pixels.shape[:2]) > 200 and 0.005 < inked < 0.95


@pytest.mark.parametrize('name', FIGURES)
def test_figures_are_written_and_not_blank(written, name):
    assert looks_drawn(written / f'{name}.png')


def drawn_texts(axes):
    return {text.get_text() for text in axes.texts}


def analysed(records, reference=None):
    return report.analyse([report.stats.run_from(r, 'a') for r in records], reference, 0.05)


def test_a_grid_of_heads_and_windows_is_drawn_as_one(baselines):
    grid = [
        record
        for heads, window, delta in [(4, 20, -30.0), (4, 50, -40.0), (8, 20, 37.9), (8, 50, -62.3)]
        for record in cells(baselines, {2.0: [delta]}, model='incrt', heads=heads, window=window)
    ]
    axes = report.ablation_figure(analysed(grid)).axes[0]
    assert drawn_texts(axes) == {'-30.0', '-40.0', '+37.9†', '-62.3'}
    assert [t.get_text() for t in axes.get_xticklabels()] == ['20', '50']
    assert [t.get_text() for t in axes.get_yticklabels()] == ['4', '8']
    report.pyplot.close('all')


def test_without_a_grid_architectures_are_drawn_over_tau_z(records):
    axes = report.ablation_figure(analysed(records)).axes[0]
    assert drawn_texts(axes) == {'-54.6', 'no mean†', '-36.0', '-28.6'}
    assert [t.get_text() for t in axes.get_yticklabels()] == ['incrt', 'transformer']
    assert [t.get_text() for t in axes.get_xticklabels()] == ['2', '5']
    report.pyplot.close('all')


def test_the_baseline_is_drawn_beside_the_payload_profile(records, baselines):
    alone = report.payload_figure(analysed(records)).axes[0].get_legend().get_texts()
    assert 'fixed gains, mean' in {text.get_text() for text in alone}
    beside = report.payload_figure(analysed([*records, baselines[2.0]])).axes[0]
    labels = {text.get_text() for text in beside.get_legend().get_texts()}
    assert labels == {'ct', 'incrt K=7 W=50', 'transformer K=4 W=20'}
    report.pyplot.close('all')


def test_a_single_seed_and_nothing_to_compare_with_are_reported(baselines, tmp_path, capsys):
    assert report_on(baselines[1.0], tmp_path) == 0
    assert 'nothing to compare with' in capsys.readouterr().err
    only = rows(tmp_path / 'out' / 'main.csv')[0]
    assert (only['n'], only['delta_mean'], only['delta_std']) == ('1', '0.0', '')


def test_runs_that_are_all_lost_are_reported(baselines, tmp_path):
    lost = cells(baselines, {2.0: [None, None]}, model='incrt')
    other = cells(baselines, {2.0: [None, -50.0]}, model='transformer')
    for record in lost:
        nothing = [None] * len(record['payload_levels_kg'])
        record |= {'rmse_by_payload': nothing, 'rmse_std_by_payload': nothing}
    assert report_on(lost + other, tmp_path) == 0
    found = rows(tmp_path / 'out' / 'main.csv')
    assert [r['num_diverged'] for r in found] == ['2', '1']
    assert [r['delta_median'] for r in found] == ['', '']
    assert all(looks_drawn(tmp_path / 'out' / f'{name}.png') for name in FIGURES)


def test_the_reference_may_be_named_by_words_of_its_label(records, baselines):
    tuned = cells(baselines, {2.0: [-45.0, -30.0]}, model='transformer', heads=4, window=50)
    with pytest.raises(report.ConfigError, match="must name one of 'transformer K=4 W=20'"):
        analysed(records + tuned)
    found = analysed(records + tuned, 'transformer W=50').comparisons
    assert [(c.tau_z_s, c.candidate) for c in found] == [
        (2.0, 'incrt K=7 W=50'),
        (2.0, 'transformer K=4 W=20'),
    ]


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (None, 'cannot be read (No such file or directory); name JSON files'),
        ('[]', 'holds no records; evaluate a run first'),
        ('[{"controller": "ct",', 'not valid JSON'),
        ('\xff', 'not valid JSON'),
        ('{"speed": 1}', 'a record lacks controller'),
        ('3', 'expected records of training.evaluate, found 3'),
    ],
)
def test_a_file_that_is_no_result_ends_with_what_to_do_and_code_2(
    content, message, tmp_path, capsys
):
    path = tmp_path / 'a.json'
    if content is not None:
        path.write_text(content, encoding='latin-1')
    assert main([str(path), '--out', str(tmp_path / 'out')]) == 2
    shown = ' '.join(capsys.readouterr().err.split())
    assert message in shown
    assert 'a.json' in shown.replace(' ', '')
    assert not (tmp_path / 'out').exists()


def test_unequal_protocols_end_with_field_files_and_code_2(tmp_path, capsys):
    files = [str(ROOT / 'results' / f'baseline_{plant}.json') for plant in ('rk4', 'bullet')]
    assert main([*files, '--out', str(tmp_path)]) == 2
    shown = ''.join(capsys.readouterr().err.split())
    assert 'plantisrk4in' in shown
    assert 'baseline_bullet.json' in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--reference', 'gru'], "no run is of the reference 'gru'; there are 'incrt K=7 W=50'"),
        (['--alpha', '5'], 'expected a number between 0 and 1, found 5'),
    ],
)
def test_a_bad_argument_ends_with_what_there_is_and_code_2(
    records, tmp_path, capsys, words, message
):
    assert report_on(records, tmp_path, *words) == 2
    assert message in ' '.join(capsys.readouterr().err.split())


def test_a_file_in_place_of_the_output_folder_ends_with_code_2(records, tmp_path, capsys):
    (tmp_path / 'out').write_text('')
    assert report_on(records, tmp_path) == 2
    assert 'name a folder to write to' in ' '.join(capsys.readouterr().err.split())


def test_help_says_what_the_columns_and_files_mean(capsys):
    with pytest.raises(SystemExit, match='0'):
        parse_args(['--help'])
    shown = capsys.readouterr().out
    for word in ('verdict.json', 'main.csv', 'more negative is better', 'p_U', '--reference'):
        assert word in shown
