# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The demo as a user runs it: four processes over Fast DDS, and what they leave behind."""

from dataclasses import replace
import json
import signal
import subprocess

import numpy as np
from PIL import Image
import psutil
import pytest

from metactl_ros.bag.tick_log import read_ticks
from metactl_ros.bench.demo import caveats
from metactl_ros.control.modes import Mode

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from support.verbs import assert_ends_all, start_verb

pytestmark = pytest.mark.ros

DURATION_S = 4.0


def addresses_of(process):
    """Return the addresses a process and its children listen on, and their command lines."""
    found, names = set(), set()
    for one in [process, *process.children(recursive=True)]:
        try:
            found |= {c.laddr.ip for c in one.net_connections(kind='inet') if c.laddr}
            names.add(' '.join(one.cmdline()))
        except psutil.Error:
            continue  # it has ended
    return found, names


def start_demo(out):
    return start_verb('demo', '--duration', DURATION_S, '--out', out)


@pytest.fixture(scope='module')
def demo(tmp_path_factory):
    """Run the demo; give its folder, what it printed, its addresses and its processes."""
    out = tmp_path_factory.mktemp('demo')
    addresses, names = set(), set()
    with start_demo(out) as process:
        while True:
            try:
                output, _ = process.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                ips, commands = addresses_of(psutil.Process(process.pid))
                addresses |= ips
                names |= commands
    assert process.returncode == 0, output
    return out, output, addresses, names


def test_it_compares_both_controllers_on_one_episode(demo):
    out, output, _, _ = demo
    summary = json.loads((out / 'summary.json').read_text())
    errors = summary['rmse_policy'], summary['rmse_baseline']
    assert 0.0 < min(errors) < max(errors) < 1.0
    if not summary['caveats']:  # else it says that an arm was not driven all the time
        assert summary['rmse_policy'] < summary['rmse_baseline']
    assert summary['delta_percent'] == pytest.approx(100.0 * (errors[0] / errors[1] - 1.0))
    assert 0.0 < summary['rate_hz'] < 101.0
    assert 0 <= summary['late_ticks'] < 100 * DURATION_S
    # Deadlines that a stalling machine misses are not made up for.
    assert 100 < sum(summary['modes'].values()) <= 100 * DURATION_S
    assert set(summary['lateness_ms']) == {'p50', 'p99', 'max'}
    assert 0.0 <= summary['shield_activation'] <= 1.0
    assert f'{summary["rmse_policy"]:.4f} rad' in output
    with Image.open(out / 'demo.png') as picture:
        assert picture.width > 800


def test_a_run_that_was_not_driven_to_its_end_is_told_of(demo):
    log = read_ticks(demo[0] / 'bag_policy').first(100)
    driven, late_ms = np.full(100, float(Mode.NOMINAL)), log.shield['late_ms'].copy()
    late_ms[7] = 99.0

    def caveats_of(modes):
        return caveats(
            {'us': replace(log, shield=log.shield | {'mode': modes, 'late_ms': late_ms})}
        )

    assert caveats_of(driven) == []
    stalled = np.where(np.arange(100) < 75, driven, float(Mode.FAULT))
    (caveat,) = caveats_of(stalled)
    assert caveat.startswith('us: 25.0 % of the ticks BLIND or FAULT, ticks up to 99 ms late')


def test_it_leaves_a_bag_of_each_run(demo):
    for name in ('bag_ct', 'bag_policy'):
        log = read_ticks(demo[0] / name)
        assert log.time_s[-1] >= DURATION_S - 0.5
        assert len(log.stamp_ns) > 100
        assert not log.num_incomplete


def test_only_the_loopback_address_is_listened_on(demo):
    _, _, addresses, names = demo
    for module in ('plant_node', 'controller_node', 'recorder'):
        assert any(f'metactl_ros.ros.{module}' in name for name in names)
    assert addresses == {'127.0.0.1'}


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end_it_ends_every_process(tmp_path, number):
    with start_demo(tmp_path / 'out') as process:
        assert_ends_all(process, number, num_children=3, exit_code=130)
