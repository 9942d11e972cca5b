# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The study of the paper's experiments, and its page from any part of its runs."""

from collections import Counter
import json

from matplotlib import pyplot
import pytest
from support.made_records import COMMIT, judgements, kept_baselines, of_study, ROOT

from metactl_ros.settings import load_file
from training.paper_study import depth_figure, gather, main, ONE_HEAD, page_of, place_of
from training.records import ABLATION, INCRT, PAPER_TABLE, Place, run_from
from training.report import payload_figure
from training.sweep import expand, Study

STUDY = load_file(Study, ROOT / 'config/studies/paper.yaml', '')
RUNS = expand(STUDY)
FIGURES = {name: f'{name}.png' for name in ('forest', 'payload', 'seeds', 'ablation')}
FLAT = [0.123, 0.124, 0.125, 0.124, 0.123]


def test_the_papers_study_has_the_60_runs_of_its_table():
    cells = Counter((run.tau_z, run.model, run.heads, run.window) for run in RUNS)
    table = {
        (1.0, 'incrt', 4, 20): 10,
        (2.0, 'incrt', 7, 50): 5,
        (5.0, 'incrt', 8, 20): 10,
        (1.0, 'transformer', 4, 20): 10,
        (2.0, 'transformer', 4, 20): 5,
        (5.0, 'transformer', 4, 20): 10,
        (2.0, 'transformer', 4, 50): 5,
        (5.0, 'transformer', 4, 50): 5,
    }
    assert sum(table.values()) == 60
    assert {cell: cells[cell] for cell in table} == table
    assert {(run.steps, run.plant, run.preset) for run in RUNS} == {(50_000, 'bullet', 'paper')}


def test_the_papers_study_begins_with_what_is_most_worth_reading():
    first = [(run.model, run.heads, run.window, run.tau_z, run.seed) for run in RUNS[:33]]
    three, five = range(42, 45), range(42, 47)
    assert first == [
        *(('incrt', 1, 20, tau_z, seed) for tau_z in (1.0, 2.0, 5.0) for seed in three),
        *(('incrt', 4, 20, 1.0, seed) for seed in five),
        *(('incrt', 7, 50, 2.0, seed) for seed in five),
        *(('incrt', 8, 20, 5.0, seed) for seed in five),
        *(('transformer', 4, 20, tau_z, seed) for tau_z in (1.0, 2.0, 5.0) for seed in three),
    ]


def test_the_papers_study_has_every_cell_of_its_ablation():
    found = {(run.model, run.heads, run.window, run.tau_z) for run in RUNS if run.seed == 42}
    models = ('incrt', 'attention_l2', 'attention_l2_ffn', 'attention_l3')
    horizons = ((7, 2.0), (8, 5.0))
    assert found >= {
        (model, heads, window, tau_z)
        for model in models
        for window in (20, 50, 100)
        for heads, tau_z in horizons
    }


def delta_of(run):
    """One layer beats the Transformer by far at 1 s, and loses to it at 5 s."""
    mean = {'incrt': {1.0: -80.0, 5.0: -50.0}, 'transformer': {1.0: -60.0, 5.0: -70.0}}
    return mean.get(run.model, {}).get(run.tau_z, -65.0) - 0.5 * (run.seed - 42)


def pick(place, seed):
    return next(run for run in RUNS if (place_of(run), run.seed) == (place, seed))


def found(records):
    return gather(STUDY, [run_from(r, f'{n}.json') for n, r in enumerate(records)])


def page(records):
    return page_of(found(records), FIGURES)


def section(text, heading):
    return text.split(f'## {heading}\n')[1].split('\n## ')[0]


def lines(text, *words):
    return [line for line in text.splitlines() if all(word in line for word in words)]


@pytest.fixture(scope='module')
def whole():
    """The page of all runs."""
    return page([of_study(run, delta_of(run)) for run in RUNS])


def write(folder, records):
    folder.mkdir()
    for number, record in enumerate(records):
        (folder / f'{number}.json').write_text(json.dumps(record))
    return folder


def command(folder, tmp_path, name='page.md'):
    study = str(ROOT / 'config/studies/paper.yaml')
    out = tmp_path / 'docs' / name
    return main(['--study', study, '--results', str(folder), '--out', str(out)]), out


@pytest.mark.parametrize('count', [0, 1, 40])
def test_one_command_writes_page_and_figures_from_any_part_of_the_runs(count, tmp_path, capsys):
    records = [of_study(run, delta_of(run)) for run in RUNS[:count]]
    code, out = command(write(tmp_path / 'results', records), tmp_path)
    assert code == 0
    assert f'{count} of 109 runs' in capsys.readouterr().err
    text = out.read_text()
    assert f'{count} of 109 runs are done' in text
    for name in FIGURES:
        assert f'(page_{name}.png)' in text
        assert 5_000 < (out.parent / f'page_{name}.png').stat().st_size < 100_000
    assert len(lines(section(text, 'Runs'), '| healthy |')) == count
    assert f'{109 - count} of 109 runs, in the order' in section(text, 'What was not run')


def test_a_folder_that_is_not_there_is_a_study_of_which_nothing_was_run(tmp_path):
    code, out = command(tmp_path / 'nowhere', tmp_path)
    assert code == 0
    table = section(out.read_text(), 'The main table, beside the paper')
    assert len(lines(table, '| not run | - |')) == len(PAPER_TABLE)
    assert len(lines(table, '| not run | -')) == len(PAPER_TABLE) + 5


def test_the_same_runs_make_the_same_files_to_the_byte(tmp_path):
    folder = write(tmp_path / 'results', [of_study(run, delta_of(run)) for run in RUNS[:12]])
    _, out = command(folder, tmp_path)
    first = {path.name: path.read_bytes() for path in out.parent.iterdir()}
    assert len(first) == 5
    command(folder, tmp_path)
    assert {path.name: path.read_bytes() for path in out.parent.iterdir()} == first


def test_the_kept_page_is_that_of_the_kept_runs(tmp_path):
    code, out = command(ROOT / 'results/study', tmp_path, 'paper_study.md')
    assert code == 0
    assert out.read_text() == (ROOT / 'docs' / 'paper_study.md').read_text(), (
        'results/study or the page has changed: run python -m training.paper_study'
    )
    for name in FIGURES:
        assert (ROOT / 'docs' / f'paper_study_{name}.png').exists()


def test_the_main_table_has_our_numbers_beside_the_papers(whole):
    table = section(whole, 'The main table, beside the paper')
    (row,) = lines(table, '| 1 s | incrt | 4 | 20 |')
    assert '| 10 | 80k | -82.25 ± 1.51 | 0/10 | INCRT-1L | 10 | 114k | -51.34 ± 8.11 |' in row
    (tests,) = lines(table, '| 1 s | incrt K=4 W=20 | transformer K=4 W=20 |')
    assert '| < 0.001 | < 0.001 | < 0.001 | better | -1.10 | 0.013 | 0.027 |' in tests
    assert len(lines(table, '| incrt K=')) == 5


def test_the_answers_say_who_is_ahead_and_what_the_paper_says(whole):
    answer = section(whole, 'Does one layer of attention beat the Transformer here?')
    assert 'Of 5 comparisons 5 could be made. INCRT-1L is better in 1 of them' in answer
    assert lines(answer, '- 1 s,', ': better (-82.2 %, n = 10 against', 'The paper: better')
    assert lines(answer, '- 5 s,', 'W=20: not shown, behind (', 'The paper: not shown, d = -0.11')
    heads = section(whole, 'Does the head count matter?')
    assert 'Of 4 comparisons 4 could be made.' in heads
    assert lines(heads, '- 2 s, incrt K=7 W=20 against incrt K=1 W=20: too few seeds')


def test_without_runs_of_both_sides_no_answer_is_given():
    text = page([of_study(run, -80.0) for run in RUNS if run.model == 'incrt'])
    answer = section(text, 'Does one layer of attention beat the Transformer here?')
    assert answer.strip().startswith('That cannot be said yet: of 5 comparisons')


def test_what_was_not_run_is_the_study_less_what_was(whole):
    assert 'Nothing: every run of the study is there.' in section(whole, 'What was not run')
    absent = [pick(INCRT[5.0], 47), pick(Place(2.0, 'attention_l3', 7, 100), 42)]
    text = page([of_study(run, -60.0) for run in RUNS if run not in absent])
    table = section(text, 'What was not run')
    assert '2 of 109 runs' in table
    assert '| 5 s | incrt K=8 W=20 | 9 of 10 | 47 |' in table
    assert '| 2 s | attention_l3 K=7 W=100 | 0 of 1 | 42 |' in table
    assert len(lines(table, ' s | ')) == 2


def failing(place):
    """Five runs of a place: lost, worse, flat, with a silent head, and a good one."""
    runs = [pick(place, seed) for seed in range(42, 47)]
    silent = judgements([[[1.0] * 7 + [0.01]]] * 4)
    return [
        of_study(runs[0], None),
        of_study(runs[1], 23.3),
        of_study(runs[2], -6.5, rmse_by_payload=FLAT),
        of_study(runs[3], -60.0, judgements=silent),
        of_study(runs[4], -60.0, rmse_by_payload=FLAT),
    ]


def test_failures_are_labelled_counted_by_errors_and_by_heads_and_never_left_out():
    text = page(failing(INCRT[5.0]))
    (row,) = lines(section(text, 'Failures'), '| 5 s | incrt K=8 W=20 |')
    # n, diverged, payload-invariant, flat; the good flat one is no failure.
    assert '| 5 | 2 | 1 | 2 | 2 to 37 | 1 | 1 of 40 | 0 of 40 | 0.100 | 4/10, 3 of them' in row
    runs = section(text, 'Runs')
    assert len(lines(runs, '| incrt K=8 W=20 |')) == 5
    assert lines(runs, '| 42 | no RMSE | - | diverged | 20 rollouts lost |')
    assert lines(runs, '| 43 | +23.3 |', '| diverged | delta +23.3 % |')
    assert lines(runs, '| 44 | -6.5 | 2 | payload-invariant |')
    assert lines(runs, '| 45 | -60.0 |', '| healthy |', '| 1 of 8 |')
    main_table = section(text, 'The main table, beside the paper')
    assert lines(main_table, '| 5 s | incrt | 8 | 20 | 5 |', '| no mean | 3/5 |')


def test_a_model_without_heads_has_no_verdict_on_them():
    text = page([of_study(pick(Place(2.0, 'mlp', 4, 20), 42), -60.0)])
    (row,) = lines(section(text, 'Failures'), '| 2 s | mlp K=4 W=20 | 1 |')
    assert '| - | - | - | 0.100 | - |' in row


def drawn(axes):
    return [text.get_text() for text in axes.texts]


def test_the_heatmap_has_seed_42_of_ours_above_the_papers():
    best, other = INCRT[2.0], Place(2.0, 'attention_l2', 7, 20)
    records = [of_study(pick(best, 42), -81.0), of_study(pick(best, 43), -11.0)]
    records += [of_study(pick(other, 42), 37.0)]
    axes = depth_figure(found(records).report).axes
    ours, printed = drawn(axes[0]), drawn(axes[2])
    assert (ours.count('-81.0'), ours.count('+37.0†'), ours.count('not run')) == (1, 1, 10)
    assert {'-62.3', '+37.9†', '+1.4†', '+79.8†'} < set(printed)
    assert drawn(axes[3]).count('none') == 2
    assert len(ours) == len(printed) == len(ABLATION) / 2
    pyplot.close('all')


def test_the_fixed_gains_may_be_among_the_results():
    base = kept_baselines('bullet')[2.0]
    study = found([base, of_study(pick(INCRT[2.0], 42), -81.0)])
    assert len(study.report.runs) == 2
    assert study.num_missing == 108
    figure = payload_figure(study.with_rows([INCRT[2.0], Place(2.0, 'ct')]))
    labels = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert labels == {'ct', 'incrt K=7 W=50'}
    pyplot.close('all')


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'seed': 7}, 'expected a run that the study lists, found incrt K=1 W=20, tau_z = 1 s'),
        ({'window': 21}, 'expected a run that the study lists, found incrt K=1 W=21'),
        ({'steps': 2_000}, 'steps: expected 50000, found 2000; run it as the study says'),
        ({'preset': 'robust'}, "preset: expected 'paper', found 'robust'"),
        ({'plant': 'rk4'}, "plant: expected 'bullet', found 'rk4'"),
        ({'num_rollouts_per_payload': 5}, 'num_rollouts_per_payload: expected 20, found 5'),
        ({'lagrangian_rate': 0.0}, 'lagrangian_rate: expected 0.001, found 0.0'),
        ({'learned_on': 'meta_observer'}, "learned_on: expected 'policy', found 'meta_observer'"),
        ({'commit': None}, 'commit: expected that of its training, found None'),
    ],
)
def test_what_is_not_of_the_study_is_refused_with_file_and_way_out(
    changes, said, tmp_path, capsys
):
    records = [of_study(pick(ONE_HEAD[1.0], 42), -60.0, **changes)]
    code, out = command(write(tmp_path / 'results', records), tmp_path)
    assert code == 2
    shown = ' '.join(capsys.readouterr().err.split())
    assert f'0.json: {said}' in shown
    assert 'move the file elsewhere' in shown
    assert not out.parent.exists()


def test_two_commits_are_refused_in_one_row_and_named_in_two():
    runs = [pick(ONE_HEAD[1.0], 42), pick(ONE_HEAD[1.0], 43), pick(ONE_HEAD[2.0], 42)]
    one, other, elsewhere = (of_study(run, -60.0) for run in runs)
    with pytest.raises(ValueError, match=rf"1.json: commit: expected '{COMMIT}', as in 0.json"):
        page([one, other | {'commit': 'fedcba'}])
    text = page([one, other, elsewhere | {'commit': 'fedcba+'}])
    assert f'Trained by `{COMMIT}` (n = 2), `fedcba+` (n = 1).' in text
    assert 'A plus stands for changes that were not committed.' in text


def test_a_file_in_place_of_the_output_folder_ends_with_code_2(tmp_path, capsys):
    (tmp_path / 'docs').write_text('')
    code, _ = command(tmp_path / 'nowhere', tmp_path)
    assert code == 2
    assert 'name a file in a folder' in ' '.join(capsys.readouterr().err.split())


def test_help_says_what_is_read_and_written(capsys):
    with pytest.raises(SystemExit, match='0'):
        main(['--help'])
    shown = capsys.readouterr().out
    for word in ('docs/paper_study.md', 'results/study', 'config/studies/paper.yaml', '--out'):
        assert word in shown
