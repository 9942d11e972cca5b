# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from metactl_ros.bag.topics import RecordedController
from metactl_ros.baselines import BASELINES, load_classical
from metactl_ros.errors import ConfigError


@pytest.mark.parametrize('name', BASELINES)
def test_what_is_recorded_of_a_baseline_is_read_to_the_bit(settings, name):
    controller, policy = load_classical(name, settings.controller, None, 1.0 / 3.0)
    action = policy.action
    text = RecordedController.of(controller, action).to_json()
    recorded = RecordedController.from_json(text, 'bag')
    assert recorded.applied_to(settings.controller) == controller
    np.testing.assert_array_equal(recorded.action, action)


def test_no_action_is_recorded_of_a_policy_that_depends_on_its_window(settings):
    text = RecordedController.of(settings.controller, None).to_json()
    assert RecordedController.from_json(text, 'bag').action is None


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('', r'bag: cannot be read .*; record again'),
        ('[' * 100_000, r'bag: cannot be read'),
        ('[]', 'expected a table of RecordedController settings'),
        ('{"gain_bax": {}}', "did you mean 'gain_box'"),
    ],
)
def test_what_is_nothing_of_the_kind_is_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        RecordedController.from_json(text, 'bag')


def test_an_action_of_another_size_is_refused(settings):
    recorded = json.loads(RecordedController.of(settings.controller, np.zeros(8)).to_json())
    recorded['action'].pop()
    with pytest.raises(ConfigError, match='expected 4 entries per joint, one per gain, found 7'):
        RecordedController.from_json(json.dumps(recorded), 'bag')
