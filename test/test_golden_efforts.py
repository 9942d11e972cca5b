# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What every controller computes is what it computed when test/golden/efforts.npz was written."""

import golden_efforts as golden
from golden_package import BLIND, CONTROLLERS, FAULT, REGIMES, rtol_for
import numpy as np
import pytest

pytestmark = pytest.mark.golden


@pytest.fixture(scope='module')
def wrong_with():
    """Return what compares a group with the kept one."""
    kept, about = golden.read()
    rule = (rtol_for(about), about['sensitivity'])
    return lambda group, items: golden.differences(kept, group, items, *rule)


@pytest.mark.parametrize('group', golden.GROUPS, ids='.'.join)
def test_every_controller_gives_the_kept_efforts_in_closed_loop(wrong_with, group):
    assert wrong_with('.'.join(group), golden.rollouts(*group)) == []


def test_every_controller_decides_on_kept_states_as_it_did(wrong_with):
    seen = golden.seen_in(golden.read()[0])
    assert wrong_with('answers', golden.answered(seen)) == []


def test_a_driver_goes_through_its_bad_day_as_it_did(wrong_with):
    assert wrong_with('days', golden.days()) == []


def test_environments_show_and_reward_what_they_did(wrong_with):
    assert wrong_with('envs', golden.envs()) == []


def test_the_kept_efforts_are_of_every_controller_in_every_regime():
    arrays, about = golden.read()
    assert not about['commit'].endswith('+')
    for regime in REGIMES:
        for controller in CONTROLLERS:
            efforts = arrays[f'{regime}.rk4.enforce.{controller}.effort_nm']
            assert efforts.dtype == np.float64
            assert np.isfinite(efforts).all()


def test_the_kept_states_lead_to_every_kind_of_mode():
    arrays, _ = golden.read()
    for controller in CONTROLLERS:
        modes = arrays[f'answers.{controller}.modes']
        assert set(range(FAULT + 1)) == set(np.unique(modes).tolist())
        assert not (modes[:100, 0] >= BLIND).any()  # that of sound sensors
        assert len(np.unique(arrays[f'answers.{controller}.causes'])) >= 10
