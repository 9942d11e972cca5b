# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What controllers are judged on in tests: few episodes, in a regime that changes nothing."""

from dataclasses import replace

from metactl_ros.baselines import ControllerSpec
from training.benchmark import load_benchmark, Regime
from training.judge.rollouts import Conditions, Trial

CASES = replace(load_benchmark().judging, rollouts=2, payloads_kg=(0.0, 1.5))
PLAIN = Regime(name='plain', meaning='as it is')


def a_trial(**changes):
    """Return ten steps of two rollouts of the fixed gains, unguarded as the paper's."""
    trial = Trial(
        spec=ControllerSpec('ct'),
        conditions=Conditions(is_guarded=False),
        tau_z_s=2.0,
        seed=1,
        payload_kg=0.0,
        num_rollouts=2,
        num_steps=10,
    )
    return replace(trial, **changes)
