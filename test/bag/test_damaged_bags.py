# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Bags cut short and with flipped bits: refused, flagged, or unharmed; never a silent score."""

from contextlib import suppress
import dataclasses
from functools import cache
import os

import numpy as np
import pytest

pytest.importorskip('rclpy', reason="needs ROS: pip install 'metactl_ros[ros]'")
from support.recordings import record_ticks, write_own, write_sqlite

from metactl_ros import settings
from metactl_ros.bag.reader import BagError
from metactl_ros.bag.tick_log import telemetry_topics
from metactl_ros.replay import verdict
from metactl_ros.replay.verdict import replay_bag, ReplayRequest

pytestmark = pytest.mark.ros

DOMAIN = os.getpid() % 50 * 2 + 2
TICKS = 200
MANY = 1000


@pytest.fixture(scope='module')
def messages(tmp_path_factory):
    rows = record_ticks(tmp_path_factory.mktemp('ct') / 'bag', DOMAIN, TICKS, controller='ct')
    # Only what a replay reads: no flip is wasted, and a thousand answers take half the time.
    return [m for m in rows if m.topic.endswith(telemetry_topics('controller'))]


@pytest.fixture(autouse=True)
def settings_read_once(monkeypatch):
    """A thousand answers read the same two YAML files: half of their time."""
    monkeypatch.setattr(verdict, 'load_arm', cache(settings.load_arm))
    monkeypatch.setattr(verdict, 'load_controller', cache(settings.load_controller))


@pytest.fixture
def whole(messages, tmp_path):
    bag = write_own(tmp_path / 'whole', messages)
    result = replay_bag(ReplayRequest(bag=bag))
    assert (result.facts['verdict'], len(result.log.stamp_ns)) == ('equal', TICKS)
    return bag, result


def assert_flagged_refused_or_unharmed(bag, whole):
    """Return which of the three."""
    try:
        result = replay_bag(ReplayRequest(bag=bag))
    except BagError:
        return 'refused'
    if result.log.problems:
        assert result.exit_code == 3
        assert result.facts['verdict'].startswith('partial')
        return 'flagged'
    for found, expected in ((result.log, whole.log), (result.log.seen, whole.log.seen)):
        for name in {field.name for field in dataclasses.fields(found)} - {'seen'}:
            np.testing.assert_equal(getattr(found, name), getattr(expected, name))
    assert result.exit_code == 0
    return 'unharmed'


def outcomes(bag, whole, damaged_files):
    found = set()
    for file, data in damaged_files:
        file.write_bytes(data)
        found.add(assert_flagged_refused_or_unharmed(bag, whole))
    return found


def truncations(file, count, rng):
    data = file.read_bytes()
    for size in rng.integers(0, len(data), count):
        yield file, data[:size]


def bit_flips(file, count, rng):
    data = file.read_bytes()
    for place in rng.integers(0, 8 * len(data), count):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        yield file, bytes(flipped)


@pytest.mark.slow
@pytest.mark.parametrize('damage', [truncations, bit_flips])
def test_no_damage_to_a_bag_is_scored_in_silence(whole, damage):
    bag, result = whole
    (file,) = bag.glob('*.mcap')
    found = outcomes(bag, result, damage(file, MANY, np.random.default_rng(7)))
    assert 'flagged' in found
    assert 'unharmed' not in found  # every byte is under a checksum


@pytest.mark.parametrize('damage', [truncations, bit_flips])
def test_no_damage_to_a_bare_file_is_scored_in_silence(whole, damage):
    bag, result = whole
    (bag / 'metadata.yaml').unlink()
    (file,) = bag.glob('*.mcap')
    found = outcomes(file, result, damage(file, 40, np.random.default_rng(8)))
    assert 'unharmed' not in found


@pytest.mark.parametrize('damage', [truncations, bit_flips])
def test_damaged_metadata_never_raises_and_never_alters_a_score(whole, damage):
    bag, result = whole
    outcomes(bag, result, damage(bag / 'metadata.yaml', 40, np.random.default_rng(9)))


def test_a_truncated_sqlite_bag_is_refused_or_flagged(messages, whole, tmp_path):
    bag = write_sqlite(tmp_path / 'sqlite', messages)
    (file,) = bag.glob('*.db3')
    found = outcomes(bag, whole[1], truncations(file, 40, np.random.default_rng(10)))
    assert 'unharmed' not in found


def test_flipped_bits_of_a_sqlite_bag_raise_nothing(messages, tmp_path):
    bag = write_sqlite(tmp_path / 'sqlite', messages)
    (file,) = bag.glob('*.db3')
    for _, data in bit_flips(file, 40, np.random.default_rng(11)):  # it has no checksums
        file.write_bytes(data)
        with suppress(BagError):
            assert replay_bag(ReplayRequest(bag=bag)).exit_code in (0, 1, 3)
