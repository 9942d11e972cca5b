# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A controller without a reference: the arm is guided by hand."""

import numpy as np
import pytest

from metactl_ros.bag.topics import RecordedController
from metactl_ros.baselines import CONTROLLERS, GRAVITY_COMPENSATION, load_classical
from metactl_ros.control.modes import Mode
from metactl_ros.errors import ConfigError
from metactl_ros.runtime.controller import LiveController, Requests
from metactl_ros.runtime.joint_states import MessageError
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState

SETTINGS = load_settings()
CONTROLLER, POLICY = load_classical(GRAVITY_COMPENSATION, SETTINGS.controller, None, 0.0)
Q = np.array([0.3, -0.4])


@pytest.fixture
def live():
    requests = Requests(payload_kg=0.5)
    controller = LiveController(SETTINGS.arm, CONTROLLER, POLICY, None, requests, 10**12)
    controller.begin(ArmState(0, Q, np.zeros(2)), None)
    return controller


def drive(live, k, q=Q):
    state = ArmState(k * 10**7, q, np.zeros(2))
    return live.drive([state], state.stamp_ns, is_fresh=True)


def test_a_trajectory_is_refused_with_the_reason(live):
    with pytest.raises(MessageError, match='one that is guided by hand; configure another'):
        live.follow(b'whatever it is', 0)


def test_what_is_recorded_as_wanted_is_where_the_arm_is(live):
    for k in range(60):
        q = Q + 1e-3 * k
        tick = drive(live, k, q)
        np.testing.assert_array_equal(tick.reference.q_rad, q)
        assert tick.health.reference_is_valid
    assert tick.mode == Mode.NOMINAL


def test_a_hold_that_was_asked_for_is_a_stop_and_ends(live):
    for k in range(60):
        drive(live, k)
    live.requests.is_enabled = False
    assert drive(live, 60).mode == Mode.STOP
    live.requests.is_enabled = True
    assert drive(live, 61).mode == Mode.FALLBACK
    assert {drive(live, k).mode for k in range(112, 120)} <= {Mode.FALLBACK, Mode.NOMINAL}


def test_the_payload_that_is_stated_is_held(live):
    live.requests.payload_kg = 1.25
    efforts = [drive(live, k).step.effort_nm for k in range(30)]
    np.testing.assert_allclose(efforts[-1], SETTINGS.arm.body(1.25).at(Q, np.zeros(2)).gravity)


def test_a_bag_carries_how_the_arm_was_guided_to_the_bit():
    recorded = RecordedController.of(CONTROLLER, POLICY.action)
    again = RecordedController.from_json(recorded.to_json(), 'bag')
    assert again == recorded
    assert again.applied_to(SETTINGS.controller) == CONTROLLER
    assert 'guiding' not in RecordedController.of(SETTINGS.controller, POLICY.action).to_json()


def test_it_is_a_controller_by_name_and_reads_a_file_of_its_own(tmp_path):
    assert GRAVITY_COMPENSATION in CONTROLLERS
    path = tmp_path / 'mine.yaml'
    path.write_text('coulomb_nm: 0.0\nfriction_shares: 0.5')
    with pytest.raises(ConfigError, match="unknown key 'friction_shares'; did you mean"):
        load_classical(GRAVITY_COMPENSATION, SETTINGS.controller, path, 0.0)
