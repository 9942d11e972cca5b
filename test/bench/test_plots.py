# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The picture of the demo: which lines it has, and where the modes are behind them."""

from dataclasses import replace
from itertools import combinations

from matplotlib.colors import to_hex, to_rgb
import numpy as np
import pytest
from support.made_bags import a_day
from support.tick_logs import Day, log_of, SETTINGS

from metactl_ros.bench.plots import draw_tracking, mode_spans, SHADES, Track, track_of
from metactl_ros.control.modes import Mode

TICK_S = 0.01
QUIET_TICKS, MUTE_TICKS, SOUND_TICKS = 70, 5, 75


@pytest.fixture(scope='module')
def logs():
    """Two runs from different places; the policy of the second one fails for a while."""
    second = Day(lambda _: second.controller.loop.nominal_action, seed=4)
    second.go(QUIET_TICKS)
    second.is_mute = True
    second.go(MUTE_TICKS)
    second.is_mute = False
    second.go(SOUND_TICKS)
    num_ticks = QUIET_TICKS + MUTE_TICKS + SOUND_TICKS
    return {'first run': log_of(a_day(num_ticks)), 'second run': log_of(second.ticks)}


def drawn(title, logs):
    return draw_tracking(title, {label: track_of(log) for label, log in logs.items()})


@pytest.fixture(scope='module')
def figure(logs):
    return drawn('two runs', logs)


def table_of(figure, num_runs=2):
    """Return the axes by run, joint and quantity."""
    return np.array(figure.axes).reshape(-1, 3, num_runs).transpose(2, 0, 1)


def data_of(line):
    return line.get_xdata(), np.ravel(line.get_ydata())


def backgrounds_of(axis):
    """Return the shades of an axis: from when to when, and the colour."""
    return [(p.get_x(), p.get_x() + p.get_width(), p.get_facecolor()[:3]) for p in axis.patches]


def where_shaded(axis, mode):
    spans = [span for *span, colour in backgrounds_of(axis) if colour == to_rgb(SHADES[mode])]
    return np.array(spans)


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_each_run_is_drawn_against_its_own_reference(figure, logs):
    first, second = logs.values()
    assert np.all(first.q_desired_rad[0] != second.q_desired_rad[0])
    for axes, log in zip(table_of(figure), logs.values(), strict=True):
        for joint, (position, *_) in enumerate(axes):
            found, wanted = position.lines
            assert (found.get_linestyle(), wanted.get_linestyle()) == ('-', '--')
            np.testing.assert_array_equal(data_of(found), (log.time_s, log.q_rad[:, joint]))
            want = (log.time_s, log.q_desired_rad[:, joint])
            np.testing.assert_array_equal(data_of(wanted), want)


def test_errors_and_efforts_are_those_of_the_run(figure, logs):
    for axes, log in zip(table_of(figure), logs.values(), strict=True):
        for joint, (_, error, effort) in enumerate(axes):
            miss = log.q_desired_rad[:, joint] - log.q_rad[:, joint]
            np.testing.assert_array_equal(data_of(*error.lines), (log.time_s, miss))
            rms = np.sqrt(np.mean(np.square(miss[1:])))
            assert error.get_title('right') == f'rms {rms:.3f} rad'
            efforts = (log.time_s, log.effort_nm[:, joint])
            np.testing.assert_array_equal(data_of(*effort.lines), efforts)


def test_one_colour_is_one_run_throughout(figure, logs):
    seen = []
    for axes, label in zip(table_of(figure), logs, strict=True):
        heading = axes[0, 0].title
        assert heading.get_text() == label
        lines = [line for axis in axes.flat for line in axis.lines if line.get_linestyle() == '-']
        assert len(lines) == axes.size
        (colour,) = {to_hex(artist.get_color()) for artist in (heading, *lines)}
        seen.append(colour)
    assert len(set(seen)) == 2


def test_a_fallback_is_shaded_where_it_was_and_only_in_its_run(figure, logs):
    modes = logs['second run'].shield['mode']
    (ticks,) = np.nonzero(modes == Mode.FALLBACK)
    assert ticks[0] == QUIET_TICKS
    assert MUTE_TICKS < len(ticks) < MUTE_TICKS + SOUND_TICKS
    first, second = table_of(figure)
    for _, error, effort in second:
        for axis in (error, effort):
            span_s = TICK_S * np.array([[ticks[0], ticks[-1] + 1]])
            np.testing.assert_allclose(where_shaded(axis, Mode.FALLBACK), span_s)
    assert not any(len(where_shaded(axis, Mode.FALLBACK)) for axis in first.flat)


def test_the_background_of_errors_and_efforts_is_the_mode_at_all_times(figure, logs):
    warmup_ticks = SETTINGS.controller.modes.warmup_ticks
    for axes, log in zip(table_of(figure), logs.values(), strict=True):
        for position, error, effort in axes:
            assert not position.patches
            assert backgrounds_of(error) == backgrounds_of(effort)
            np.testing.assert_allclose(
                where_shaded(error, Mode.WARMUP), [[0.0, TICK_S * warmup_ticks]]
            )
            *_, (_, end_s, colour) = backgrounds_of(error)
            assert end_s == pytest.approx(log.time_s[-1] + TICK_S)
            assert colour == to_rgb('white')  # NOMINAL


def test_the_legend_names_the_modes_that_occur_in_any_run_and_no_others(figure, logs):
    reference = 'reference of the run'
    assert legend_of(figure) == [reference, 'NOMINAL', 'WARMUP', 'FALLBACK']
    alone = drawn('one run', {'first run': logs['first run']})
    assert legend_of(alone) == [reference, 'NOMINAL', 'WARMUP']
    for artist, mode in zip(figure.legends[0].get_patches(), Mode, strict=False):
        assert artist.get_facecolor()[:3] == to_rgb(SHADES[mode])


def test_runs_are_compared_on_one_scale_with_units(figure, logs):
    first, second = table_of(figure)
    for joint, name in enumerate(logs['first run'].joint_names):
        names = [axis.get_ylabel() for axis in first[joint]]
        assert names == [f'{name}\nposition [rad]', 'error [rad]', 'effort [N m]']
        for a, b in zip(first[joint], second[joint], strict=True):
            assert a.get_ylim() == b.get_ylim()
            assert a.get_xlim() == b.get_xlim() == pytest.approx((0.0, 1.5))
    assert [axes[-1, -1].get_xlabel() for axes in (first, second)] == ['time [s]'] * 2
    assert {axis.get_xlabel() for axis in first.flat[:-1]} == {''}  # said once, below
    assert {axis.get_ylabel() for axis in second.flat} == {''}
    assert figure.get_suptitle() == 'two runs'


def test_any_number_of_joints_and_runs_is_drawn(logs):
    log = logs['first run']
    wide = {
        name: np.hstack([getattr(log, name), 7.0 + getattr(log, name)[:, :1]])
        for name in ('q_rad', 'q_desired_rad', 'effort_nm')
    }
    three = replace(log, joint_names=('a', 'b', 'c'), **wide)
    figure = drawn('many', dict.fromkeys('xyz', three))
    table = table_of(figure, num_runs=3)
    assert table.shape == (3, 3, 3)
    assert all(axis.lines for axis in table.flat)
    assert [axes[0].get_ylabel()[0] for axes in table[0]] == ['a', 'b', 'c']


def test_a_mode_lasts_until_the_next_tick_and_the_last_one_for_a_usual_period():
    time_s = np.array([0.0, 0.1, 0.2, 0.7, 0.8])
    spans = mode_spans(time_s, np.array([1, 0, 0, 5, 1]))
    begin_to_end = [(0.0, 0.1), (0.1, 0.7), (0.7, 0.8), (0.8, pytest.approx(0.9))]
    assert [mode.name for mode, *_ in spans] == ['WARMUP', 'NOMINAL', 'FAULT', 'WARMUP']
    assert [tuple(ends) for _, *ends in spans] == begin_to_end
    assert mode_spans(np.array([3.0]), np.array([2])) == [(Mode.FALLBACK, 3.0, 3.0)]


def test_shades_are_pale_but_no_two_are_alike():
    assert SHADES[Mode.NOMINAL] == to_rgb('white')
    lightness = [np.dot(SHADES[mode], [0.2126, 0.7152, 0.0722]) for mode in Mode]
    assert lightness == sorted(lightness, reverse=True)  # the graver the darker
    assert lightness[-1] > 0.5
    for a, b in combinations(SHADES.values(), 2):
        assert np.linalg.norm(np.subtract(a, b)) > 0.1


def test_a_single_grave_tick_is_not_covered_by_its_neighbours(logs):
    log = logs['first run']
    modes = log.shield['mode'].copy()
    modes[30] = Mode.FAULT  # amid WARMUP
    figure = drawn('one', {'run': replace(log, shield=log.shield | {'mode': modes})})
    before, fault, after, _ = figure.axes[1].patches
    assert fault.get_facecolor()[:3] == to_rgb(SHADES[Mode.FAULT])
    assert fault.get_linewidth() > 0.5
    assert max(before.get_zorder(), after.get_zorder()) < fault.get_zorder()
    assert fault.get_zorder() < min(line.get_zorder() for line in figure.axes[1].lines)


def test_seven_joints_are_a_row_each_and_share_their_scales(logs):
    def widened(track):
        arrays = (track.q_rad, track.q_desired_rad, track.effort_nm)
        wide = [np.tile(x, (1, 4))[:, :7] * np.arange(1.0, 8.0) for x in arrays]
        names = [f'joint{joint}' for joint in range(1, 8)]
        return Track(names, track.time_s, *wide, track.modes)

    tracks = {label: widened(track_of(log)) for label, log in logs.items()}
    figure = draw_tracking('seven', tracks)
    assert figure.get_figwidth() > figure.get_figheight()
    grid = np.array(figure.axes).reshape(7, 2, 3)
    for joint, row in enumerate(grid):
        for axes, track in zip(row, tracks.values(), strict=True):
            found, wanted = axes[0].lines
            np.testing.assert_array_equal(data_of(found)[1], track.q_rad[:, joint])
            np.testing.assert_array_equal(data_of(wanted)[1], track.q_desired_rad[:, joint])
            np.testing.assert_array_equal(data_of(*axes[2].lines)[1], track.effort_nm[:, joint])
        assert row[0, 0].get_ylabel().startswith(f'joint{joint + 1}\n')
        for one, other in zip(*row, strict=True):
            low, high = one.get_ylim()
            assert (low, high) == other.get_ylim()
            drawn_all = np.concatenate(
                [np.ravel(x.get_ydata()) for x in (*one.lines, *other.lines)]
            )
            assert low <= drawn_all.min() < drawn_all.max() <= high
    assert [axis.get_xlabel() for axis in grid[-1].flat] == ['time [s]'] * 6
    assert not any(axis.get_xlabel() for axis in grid[:-1].flat)
