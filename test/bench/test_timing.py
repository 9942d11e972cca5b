# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark over ROS, as short as it goes: it measures something, and all of it is safe.

How long things took is for `make nightly` to say; the kept figures are held to their goals here.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from support.verbs import DOMAIN

from metactl_ros.bench import timing
from metactl_ros.bench.timing import num_unsafe, run_bench
from metactl_ros.settings import shipped_policy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.ros
def test_a_short_bench_has_every_figure_and_no_unsafe_effort(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, 'ATTEMPTS', 1)
    monkeypatch.setenv('ROS_DOMAIN_ID', str(DOMAIN))  # none that another test is on
    out = tmp_path / 'timing.json'
    headlines = tmp_path / 'bench.json'
    headlines.write_text('{"other": 1}')
    run_bench(out, 1.0, 1, 1, shipped_policy(), headlines)
    named = {'tick_p99_ms', 'inference_p99_ms_w50', 'node_rss_mb'}
    assert json.loads(headlines.read_text()).keys() == {'other'} | named
    found = json.loads(out.read_text())
    kept = json.loads((ROOT / 'results' / 'ros_timing.json').read_text())
    for section in ('quiet', 'loaded', 'blind', 'crashes', 'replay', 'tracking'):
        assert found[section].keys() == kept[section].keys()
    assert found['measured'].keys() == kept['measured'].keys() == set(timing.SECTIONS)
    for run in ('quiet', 'loaded'):
        assert found[run]['num_ticks'] > 10
        assert found[run]['unsafe_efforts'] == 0
    silences = found['blind']
    noticed = silences['number'] + len(silences['while_the_machine_stalled_ms'])
    assert silences['injected'] == noticed + silences['missed'] + silences['while_not_driving']
    assert noticed >= 1
    assert found['replay']['verdict'] == 'equal'
    crashes = found['crashes']
    for killed in ('controller', 'plant'):
        assert crashes[killed]['largest_effort_step_share'] <= 1.0 + 1e-9
    assert crashes['sigterm']['last_command_zero'] == 1
    assert crashes['sigterm']['exit_codes'] == [0]


@pytest.mark.parametrize(
    ('before', 'effort', 'sent', 'expected'),
    [
        (10.0, 10.0, 10.0, 0),
        (10.0, 10.0, np.nan, 0),  # not recorded
        (10.0, np.nan, 10.0, 1),
        (1e4, 1e4, 10.0, 1),
        (0.0, 20.0, 0.0, 1),
        (0.0, 0.0, 20.0, 1),
        (10.0, 10.0, np.inf, 1),
    ],
)
def test_an_effort_that_is_no_number_too_large_or_too_far_is_counted(
    before, effort, sent, expected
):
    names = ('effort_before_nm', 'effort_nm', 'sent_nm')
    log = SimpleNamespace(**{name: np.zeros((5, 2)) for name in names})
    for name, value in zip(names, (before, effort, sent), strict=True):
        getattr(log, name)[3, 1] = value
    assert num_unsafe(log) == expected


KEPT = json.loads((ROOT / 'results' / 'ros_timing.json').read_text())


@pytest.mark.parametrize(
    ('path', 'least', 'most'),
    [
        ('quiet rate_hz', 99.9, 100.1),
        ('loaded rate_hz', 99.9, 100.1),
        ('quiet tick_ms p99', None, 2.0),
        ('quiet controller_rss_mb', None, 200.0),
        ('quiet unsafe_efforts', None, 0),
        ('loaded unsafe_efforts', None, 0),
        ('blind number', 100, None),
        ('blind missed', None, 0),
        ('quiet inference_ms p99', None, 0.5),
        ('blind last_state_to_blind_ms max', None, 40.0),
        ('crashes controller last_command_to_brake_ms max', None, 40.0),
        ('crashes controller start_to_nominal_s max', None, 5.0),
        ('crashes plant start_to_nominal_s max', None, 5.0),
        ('crashes sigterm exit_s max', None, 0.5),
        ('crashes plant kill_to_blind_ms max', None, 40.0),
        ('crashes controller largest_effort_step_share', None, 1.0 + 1e-9),
        ('crashes plant largest_effort_step_share', None, 1.0 + 1e-9),
        ('replay times_real_time', 20.0, None),
    ],
)
def test_a_kept_figure_over_ros_meets_its_goal(path, least, most):
    value = KEPT
    for name in path.split():
        value = value[name]
    assert least is None or value >= least
    assert most is None or value <= most


def test_the_kept_tracking_over_ros_is_that_in_process_and_no_worse_after_a_minute():
    found = KEPT['tracking']
    for span in ('', '_5s'):
        assert found[f'rmse_over_ros{span}'] == pytest.approx(
            found[f'rmse_in_process{span}'], rel=0.05
        )
    assert KEPT['quiet']['duration_s'] > 59.0
    assert found['rmse_over_ros'] <= found['rmse_over_ros_5s']
