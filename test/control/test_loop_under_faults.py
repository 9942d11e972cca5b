# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A state machine that throws every kind of bad input at a real control loop."""

from dataclasses import replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, RuleBasedStateMachine
import numpy as np

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Health, HEALTHY, Mode
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState, Reference
from metactl_ros.sim.rollout import unguarded

NOMINAL, WARMUP, FAULT = Mode.NOMINAL, Mode.WARMUP, Mode.FAULT
PERIOD_NS = 10_000_000
SECOND_NS = 1_000_000_000

SHIPPED = load_settings()
LIMITS = SHIPPED.arm.limits
REACH_NM = np.array(LIMITS.effort_rate_nmps) / SHIPPED.controller.law.rate_hz
QUICK = replace(
    SHIPPED.controller, modes=replace(SHIPPED.controller.modes, warmup_ticks=3, recovery_ticks=3)
)
FLAGS = ('state_is_fresh', 'reference_is_valid', 'policy_is_on_time')

unusable = st.sampled_from([np.nan, np.inf, -np.inf, 1e308, -1e308])
proposals = st.floats(-1.0, 1.0) | st.sampled_from([-1e308, -1e20, -1.5, 1.5, 1e6, 1e20, 1e308])
actions = st.lists(proposals, min_size=8, max_size=8).map(np.array)
unhealthy = st.sampled_from(
    [
        HEALTHY._replace(error=Cause.INTERNAL_ERROR),
        *(HEALTHY._replace(**{name: False}) for name in FLAGS),
    ]
)
speeds = st.sampled_from([0.0, 0.005]) | st.floats(-2.0, 2.0)


def pairs(entries):
    return st.lists(entries, min_size=2, max_size=2).map(np.array)


motions = st.tuples(pairs(st.floats(-2.0, 2.0)), pairs(speeds), pairs(st.floats(-0.3, 0.3)))


class LoopUnderFaults(RuleBasedStateMachine):
    @initialize(motion=motions)
    def begin(self, motion):
        q, qd, _ = motion
        self.loop, self.now_ns = ControlLoop(SHIPPED.arm, unguarded(QUICK)), 0
        self.loop.reset(ArmState(0, q, qd), np.zeros(2))
        self.mode, self.effort, self.motion = WARMUP, np.zeros(2), motion
        self.box = self.loop.gain_map.lower, self.loop.gain_map.upper

    def tick(self, action=None, corrupt=None, value=0.0, health=HEALTHY, is_bad=True):
        self.now_ns += PERIOD_NS
        q, qd, error = self.motion
        signals = [q, qd, q + error, np.zeros(2), np.zeros(2)]
        if corrupt is not None:
            signal, joint = divmod(corrupt, 2)
            signals[signal] = signals[signal].copy()
            signals[signal][joint] = value
        state, reference = ArmState(self.now_ns, *signals[:2]), Reference(*signals[2:])
        if np.isfinite(signals[:2]).all():
            assert self.loop.observe(state, reference, 0.5).shape == (50, 11)
        action = self.loop.nominal_action if action is None else action
        step = self.loop.actuate(action, state, reference, self.now_ns, health)
        self.check(step, health, is_bad)

    def check(self, step, health, is_bad):
        before, self.mode = self.mode, Mode(int(step.modes))
        previous, self.effort = self.effort, step.effort_nm
        assert np.isfinite(self.effort).all()
        assert np.all(np.abs(self.effort) <= LIMITS.effort_nm)
        assert np.all(np.abs(self.effort - previous) <= REACH_NM + 1e-9)
        theta = step.decision.gains.theta
        assert np.all((self.box[0] <= theta) & (theta <= self.box[1]))
        if is_bad:
            assert self.mode != NOMINAL
        if before == FAULT:
            is_excused = is_bad and not health.policy_is_on_time  # WARMUP needs no policy
            may_leave = health.reset_requested and (not is_bad or is_excused)
            assert self.mode == (WARMUP if may_leave else FAULT)
        if self.mode == NOMINAL:
            assert step.decision.excess <= 1e-6
        if self.mode == FAULT:
            expected = np.sign(previous) * np.maximum(np.abs(previous) - REACH_NM, 0.0)
            np.testing.assert_allclose(self.effort, expected, rtol=0, atol=1e-9)

    @rule(motion=motions, action=actions, count=st.integers(1, 6))
    def good_ticks(self, motion, action, count):
        self.motion = motion
        for _ in range(count):
            self.tick(action, is_bad=False)

    @rule(value=unusable, corrupt=st.integers(0, 3))
    def unusable_state(self, value, corrupt):
        self.tick(corrupt=corrupt, value=value)

    @rule(value=unusable, corrupt=st.integers(4, 9), count=st.integers(1, 3))
    def unusable_reference(self, value, corrupt, count):
        for _ in range(count):
            self.tick(corrupt=corrupt, value=value)

    @rule(exponent=st.floats(1.0, 308.0), sign=st.sampled_from([-1, 1]), corrupt=st.integers(0, 3))
    def state_beyond_limits(self, exponent, sign, corrupt):
        self.tick(corrupt=corrupt, value=sign * 10.0**exponent)

    @rule(action=actions, entry=st.integers(0, 7), value=st.sampled_from([np.nan, np.inf]))
    def unusable_action(self, action, entry, value):
        action = action.copy()
        action[entry] = value
        self.tick(action)

    @rule(fault=unhealthy, reset=st.booleans())
    def unhealthy_tick(self, fault, reset):
        self.tick(health=fault._replace(reset_requested=reset))

    @rule()
    def reset_request(self):
        self.tick(health=Health(reset_requested=True), is_bad=False)

    @rule(passed_ns=st.integers(0, 12 * SECOND_NS))
    def time_passes(self, passed_ns):
        self.now_ns += passed_ns


TestLoopUnderFaults = LoopUnderFaults.TestCase
TestLoopUnderFaults.settings = hypothesis_settings(
    max_examples=300, stateful_step_count=30, deadline=None, report_multiple_bugs=False
)
