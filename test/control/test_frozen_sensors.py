# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""All readings freeze while the arm is held, or moves slowly: no controller throws it."""

import numpy as np
import pytest
from support.episodes import start

from metactl_ros.baselines import BASELINES, ConstantPolicy, load_classical, load_learned
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.settings import shipped_policy
from metactl_ros.signals import ArmState, Reference
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import without_warmup

POSTURES = np.array([[0.3, 0.2], [1.0, -0.5], [0.0, 0.0], [-1.0, 1.5], [2.0, -2.0], [1.5, 0.4]])
FREEZES_S, ENDS_S = 2.0, 4.0
PAYLOAD_KG = 0.75
FASTEST_RADPS = 3.0
"""How fast an arm may be while it is driven: of all runs here the fastest reached 2.8 rad/s."""


def controller_of(name, settings):
    """Return a loop and a policy for a batch of arms."""
    if name == 'policy':
        bundle = load_learned(shipped_policy(), settings.arm, settings.controller)
        loop = ControlLoop(settings.arm, without_warmup(bundle.controller))
        return loop, lambda windows: np.stack([bundle.policy(window) for window in windows])
    controller, policy = load_classical(name, settings.controller, None, PAYLOAD_KG)
    loop = ControlLoop(settings.arm, without_warmup(controller))
    return loop, policy or ConstantPolicy(loop.nominal_action)


@pytest.mark.parametrize('slope_radps', [0.0, 0.02])
@pytest.mark.parametrize(
    'name', ['policy', 'ct', *(name for name in BASELINES if name != 'oracle')]
)
def test_an_arm_whose_readings_freeze_is_let_go_of_before_it_is_fast(settings, name, slope_radps):
    loop, policy = controller_of(name, settings)
    rate_hz, aside = settings.controller.law.rate_hz, np.zeros_like(POSTURES)
    plant = Rk4Arm(settings.arm, settings.plant.friction, rate_hz)
    state = plant.reset(start(POSTURES, aside, aside, PAYLOAD_KG))
    loop.reset(state)
    speed = np.array([slope_radps, -slope_radps])
    fastest, found = np.zeros(len(POSTURES)), set()
    driven = np.ones(len(POSTURES), dtype=bool)
    for k in range(round(ENDS_S * rate_hz)):
        t_s = k / rate_hz
        if t_s <= FREEZES_S:
            seen = ArmState(0, state.q_rad, state.qd_radps)
        reference = Reference(POSTURES + speed * t_s, aside + speed, aside)
        seen = ArmState(state.stamp_ns, seen.q_rad, seen.qd_radps)
        window = loop.observe(seen, reference, aside[:, 0] + PAYLOAD_KG)
        step = loop.actuate(policy(window), seen, reference, state.stamp_ns)
        driven &= step.modes != Mode.FAULT
        assert driven.all() or t_s > FREEZES_S
        found |= {Cause(cause) for cause in step.causes[~driven].tolist()}
        fastest = np.maximum(fastest, driven * np.abs(state.qd_radps).max(axis=-1))
        state = plant.step(step.effort_nm)
    assert fastest.max() < FASTEST_RADPS
    assert found <= {Cause.FROZEN_STATE}
    assert slope_radps == 0.0 or not driven.any()
