# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A run, the messages of its bag, and their replay."""

import pytest


@pytest.fixture(scope='module')
def ticks():
    from support.made_bags import a_day

    return a_day()


@pytest.fixture(scope='module')
def fade(ticks):
    """Efforts after the last tick, down to a last zero, N m."""
    from support.made_bags import fade_of

    return fade_of(ticks[-1].step.effort_nm)


@pytest.fixture(scope='module')
def rows(ticks, fade):
    """Messages of a run that was recorded from its first tick to its last zero."""
    from support.made_bags import bag_of

    return bag_of(ticks, tail=fade)


@pytest.fixture
def judged(tmp_path):
    """Return the replay of messages, once they are in a bag."""
    from support.made_bags import write

    from metactl_ros.replay.verdict import replay_bag, ReplayRequest

    return lambda rows: replay_bag(ReplayRequest(bag=write(tmp_path / 'bag.mcap', rows)))
