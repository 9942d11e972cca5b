# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import csv
import json

from matplotlib import image, pyplot
import numpy as np
import pytest
from support.made_records import cells, COMMIT, kept_baselines, ROOT

from training.judge.analysis import comparison_facts
from training.records import PAPER_STEPS, PAPER_TABLE, run_from, TUNED
from training.report import (
    ablation_figure,
    analyse,
    analyse_as_paper,
    comparison_rows,
    forest_figure,
    main,
    main_rows,
    parse_args,
    payload_figure,
    seeds_figure,
)

FIGURES = ('forest', 'payload', 'ablation', 'seeds')
INCRT = {2.0: [-62.0, -58.0, -55.0, -51.0, -47.0], 5.0: [-64.7, -58.0, -34.3, 15.0, None]}
TRANSFORMER = {2.0: [-44.0, -41.0, -36.0, -33.0, -26.0], 5.0: [-45.0, -35.0, -28.0, -20.0, -15.0]}


@pytest.fixture(scope='module')
def baselines():
    return kept_baselines('rk4')


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


def test_the_comparisons_have_tests_effect_sizes_and_intervals(written):
    found, other = rows(written / 'comparisons.csv')
    assert (found['candidate'], found['reference']) == ('incrt K=7 W=50', 'transformer K=4 W=20')
    assert (found['tau_z'], other['tau_z']) == ('2.0', '5.0')
    assert float(found['p_u']) == pytest.approx(1 / 252)
    assert float(found['p_u_holm']) == pytest.approx(2 / 252)
    assert float(found['d_low']) < float(found['d']) < float(found['d_high']) < 0.0
    assert (found['verdict'], other['verdict']) == ('better', 'not shown')
    # A seed without an RMSE leaves no mean to compare, but it has a rank: the last.
    assert other['d'] == other['p_w'] == ''
    assert 0.0 < float(other['p_u']) < 1.0


def test_markdown_and_terminal_show_the_same_rows(written, records, tmp_path, capsys):
    text = (written / 'main.md').read_text()
    assert '| 2 s | incrt | 7 | 50 | 5 | 241k | -54.60 ± 5.86 | 0/5 |\n' in text
    tests = '| -2.87 | -4.69 to -0.98 | 0.004 | 0.008 | 0.002 | better |\n'
    assert f'| 2 s | incrt K=7 W=50 | transformer K=4 W=20 {tests}' in text
    assert report_on(records, tmp_path) == 0
    shown = capsys.readouterr().out
    for word in ('241k', '-54.60 ± 5.86', '-2.87', '0.008', 'no mean', '2/5'):
        assert word in shown


def test_failed_seeds_stay_in_every_table(written):
    found = row(rows(written / 'main.csv'), 'incrt', 5.0)
    assert (found['n'], found['num_failures'], found['num_diverged']) == ('5', '2', '2')
    # No mean without the lost seed; the median and the ranks count it as the worst.
    assert found['delta_mean'] == ''
    assert float(found['delta_median']) == -34.3
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
    return analyse([run_from(r, 'a') for r in records], reference, 0.05)


def test_a_grid_of_heads_and_windows_is_drawn_as_one(baselines):
    grid = [
        record
        for heads, window, delta in [(4, 20, -30.0), (4, 50, -40.0), (8, 20, 37.9), (8, 50, -62.3)]
        for record in cells(baselines, {2.0: [delta]}, model='incrt', heads=heads, window=window)
    ]
    axes = ablation_figure(analysed(grid)).axes[0]
    assert drawn_texts(axes) == {'-30.0', '-40.0', '+37.9†', '-62.3'}
    assert [t.get_text() for t in axes.get_xticklabels()] == ['20', '50']
    assert [t.get_text() for t in axes.get_yticklabels()] == ['4', '8']
    pyplot.close('all')


def test_without_a_grid_architectures_are_drawn_over_tau_z(records):
    axes = ablation_figure(analysed(records)).axes[0]
    assert drawn_texts(axes) == {'-54.6', 'no mean†', '-36.0', '-28.6'}
    assert [t.get_text() for t in axes.get_yticklabels()] == ['incrt', 'transformer']
    assert [t.get_text() for t in axes.get_xticklabels()] == ['2', '5']
    pyplot.close('all')


def test_the_baseline_is_drawn_beside_the_payload_profile(records, baselines):
    alone = payload_figure(analysed(records)).axes[0].get_legend().get_texts()
    assert 'fixed gains, mean' in {text.get_text() for text in alone}
    beside = payload_figure(analysed([*records, baselines[2.0]])).axes[0]
    labels = {text.get_text() for text in beside.get_legend().get_texts()}
    assert labels == {'ct', 'incrt K=7 W=50', 'transformer K=4 W=20'}
    pyplot.close('all')


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


def pairs(report):
    return [(one.tau_z_s, one.label, two.label) for one, two in report.comparisons]


def test_a_row_is_compared_with_every_transformer_of_its_horizon(records, baselines):
    tuned = cells(baselines, {2.0: [-45.0, -30.0]}, model='transformer', heads=4, window=50)
    assert pairs(analysed(records + tuned)) == [
        (2.0, 'incrt K=7 W=50', 'transformer K=4 W=20'),
        (2.0, 'incrt K=7 W=50', 'transformer K=4 W=50'),
        (5.0, 'incrt K=7 W=50', 'transformer K=4 W=20'),
    ]


def test_the_reference_may_be_named_by_words_of_its_label(records, baselines):
    tuned = cells(baselines, {2.0: [-45.0, -30.0]}, model='transformer', heads=4, window=50)
    assert pairs(analysed(records + tuned, 'transformer W=50')) == [
        (2.0, 'incrt K=7 W=50', 'transformer K=4 W=50'),
        (2.0, 'transformer K=4 W=20', 'transformer K=4 W=50'),
    ]


def of_paper(baselines, steps=PAPER_STEPS, leave_out=()):
    """Return as many runs as the paper's main table has, around its means, and one of K = 1."""
    records = cells(
        baselines, {2.0: [-50.0]}, model='incrt', heads=1, window=20, steps=steps, commit=COMMIT
    )
    for place, row in PAPER_TABLE.items():
        if place not in leave_out:
            deltas = row.delta.mean + row.delta.std * np.linspace(-1.0, 1.0, row.delta.n)
            records += cells(
                baselines,
                {place.tau_z_s: list(deltas)},
                model=place.architecture,
                heads=place.heads,
                window=place.window,
                num_parameters=1_000 * row.thousand_parameters + 399,
                steps=steps,
                commit=COMMIT,
            )
    return records


def test_one_call_makes_the_papers_table_beside_its_own_numbers(baselines, tmp_path, capsys):
    assert report_on(of_paper(baselines), tmp_path, '--paper') == 0
    shown = capsys.readouterr().out
    assert 'Transformer-tuned' in shown
    table = rows(tmp_path / 'out' / 'main.csv')
    assert [int(r['n']) for r in table] == [10, 10, 5, 5, 5, 10, 10, 5, 1]
    for found, printed in zip(table, PAPER_TABLE.values(), strict=False):
        assert found['paper_name'] == printed.name
        assert float(found['delta_mean']) == pytest.approx(float(found['paper_delta_mean']))
    text = (tmp_path / 'out' / 'main.md').read_text()
    assert '| 271k | -35.73 ± 8.47 | 5/5 |' not in text  # weak is no failure
    line = '| 5 | 271k | -35.73 ± 8.47 | 0/5 | Transformer-tuned | 5 | 271k | -35.73 ± 10.71 |\n'
    assert f'| 2 s | transformer | 4 | 50 {line}' in text
    tests = rows(tmp_path / 'out' / 'comparisons.csv')
    assert [(r['tau_z'], r['reference'], r['paper_d'], r['paper_p_u']) for r in tests] == [
        ('1.0', 'transformer K=4 W=20', '-1.1', '0.013'),
        ('2.0', 'transformer K=4 W=20', '-2.06', '0.008'),
        ('2.0', 'transformer K=4 W=50', '-2.02', '0.008'),
        ('5.0', 'transformer K=4 W=20', '-0.11', '0.214'),
        ('5.0', 'transformer K=4 W=50', '-0.07', '0.257'),
    ]
    assert all(r['verdict'] in ('better', 'not shown') for r in tests)


def test_a_row_of_the_paper_that_was_not_run_says_so(baselines):
    absent = TUNED[5.0]
    runs = [run_from(r, 'a') for r in of_paper(baselines, leave_out=[absent])]
    report = analyse_as_paper(runs, 0.05)
    by_name = dict(zip(report.rows, main_rows(report), strict=True))
    assert by_name[absent]['delta %'] == 'not run'
    assert by_name[absent]['paper delta %'] == '-30.29 ± 15.86'
    assert [r['verdict'] for r in comparison_rows(report)].count('not run') == 1
    assert 'not run' in str(drawn_texts(forest_figure(report).axes[0]))
    assert 'not run' in drawn_texts(seeds_figure(report).axes[0])
    pyplot.close('all')


def test_the_papers_numbers_stand_only_beside_runs_of_its_budget(baselines):
    report = analyse_as_paper([run_from(r, 'a') for r in of_paper(baselines, steps=2_000)], 0.05)
    assert not any(report.printed(row) for row in report.rows)
    assert 'paper n' not in main_rows(report)[0]
    assert {r['paper_d'] for r in comparison_facts(report)} == {None}


def test_a_table_of_mixed_runs_is_refused_with_file_and_way_out(baselines, tmp_path, capsys):
    other = of_paper(baselines)[1] | {'commit': 'fedcba', 'seed': 99}
    (tmp_path / 'other.json').write_text(json.dumps(other))
    (tmp_path / 'runs.json').write_text(json.dumps(of_paper(baselines)))
    files = [str(tmp_path / name) for name in ('runs.json', 'other.json')]
    assert main([*files, '--paper', '--out', str(tmp_path / 'out')]) == 2
    shown = ' '.join(capsys.readouterr().err.split())
    assert f"other.json: commit: expected '{COMMIT}', as in" in shown
    assert 'or report them separately' in shown
    assert not (tmp_path / 'out').exists()


def test_runs_that_do_not_say_who_made_them_are_counted_in_the_notes(written):
    text = (written / 'main.md').read_text()
    assert '- 22 of 22 runs do not say which commit made them\n' in text


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
    assert "plant:expected'rk4',asin" in shown
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
