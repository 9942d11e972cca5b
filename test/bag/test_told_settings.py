# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from metactl_ros.bag.recorded_controller import hear, tell
from metactl_ros.baselines import load_classical, RIVALS
from metactl_ros.errors import ConfigError


@pytest.mark.parametrize('name', RIVALS)
def test_what_is_told_of_a_rival_is_heard_to_the_bit(settings, name):
    controller, policy = load_classical(name, settings.controller, None, 1.0 / 3.0)
    action = policy(np.zeros((1, 1)))
    heard = hear(tell(controller, action), 'bag')
    assert heard.applied_to(settings.controller) == controller
    np.testing.assert_array_equal(heard.action, action)


def test_a_policy_that_sees_tells_no_action(settings):
    assert hear(tell(settings.controller, None), 'bag').action is None


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('', r'bag: cannot be read .*; record again'),
        ('[' * 100_000, r'bag: cannot be read'),
        ('[]', 'expected a table of ToldSettings settings'),
        ('{"gain_bax": {}}', "did you mean 'gain_box'"),
    ],
)
def test_what_is_nothing_of_the_kind_is_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        hear(text, 'bag')


def test_an_action_of_another_size_is_refused(settings):
    told = json.loads(tell(settings.controller, np.zeros(8)))
    told['action'].pop()
    with pytest.raises(ConfigError, match='expected 8 entries, one per gain, found 7'):
        hear(json.dumps(told), 'bag')
