# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Kept recordings are computed again to the bit, and replay says of them what it said."""

from golden_bags import BAGS, FILE, NUM_TICKS, RECORDED, replay, REPLAYS
from golden_package import rtol_for
from golden_values import json_differences, read_json
import pytest

EXACT = ('verdict', 'exit_code', 'first_difference')
"""Says `equal` only of bits."""
APART = ('largest_difference_nm', 'effort_rms_difference_nm')

pytestmark = pytest.mark.golden


@pytest.mark.parametrize('name', REPLAYS)
def test_a_kept_bag_is_replayed_with_the_kept_answer(name, tmp_path):
    about = read_json(BAGS / FILE)
    kept, rtol = about['replays'][name], rtol_for(about)
    code, facts = replay(name, tmp_path)
    if rtol > 0.0 and name in RECORDED:
        most_nm = rtol * max(x['peak_nm'] for x in facts['recording']['effort'].values())
        assert facts['largest_difference_nm'] <= most_nm
        for field in (*EXACT, *APART):
            facts[field] = kept['facts'][field]
        code = kept['exit_code']
    assert code == kept['exit_code'] == 0
    assert list(json_differences(kept['facts'], facts, rtol)) == []


@pytest.mark.parametrize('name', RECORDED)
def test_a_kept_bag_is_equal_whole_and_small(name):
    kept = read_json(BAGS / FILE)['replays'][name]['facts']
    assert kept['verdict'] == 'equal'
    assert kept['ticks']['compared'] == kept['ticks']['recorded'] == NUM_TICKS
    assert set(kept['recording']['mode_share']) == {'WARMUP', 'NOMINAL'}
    assert sum(file.stat().st_size for file in (BAGS / name).iterdir()) < 250_000
