# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Logs of ticks that no bag was needed for: a controller on a simulated arm, and its bad day."""

from dataclasses import replace

import numpy as np

from metactl_ros.bag.command_log import CommandLog
from metactl_ros.bag.tick_log import Seen, TickLog
from metactl_ros.bag.topics import (
    ESTIMATED_PAYLOAD,
    FORWARD,
    SHIELD_NAMES,
    STAMPED,
    STATE_NAMES,
)
from metactl_ros.control.modes import Cause
from metactl_ros.runtime.controller import LiveController, Requests
from metactl_ros.runtime.reference_source import MotionSource
from metactl_ros.settings import load_settings
from metactl_ros.signals import period_ns_of
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import unguarded
from metactl_ros.sim.task import draw_episode
from support.episodes import LIMITS

SETTINGS = load_settings()
ARM = SETTINGS.arm
PERIOD_NS = period_ns_of(SETTINGS.controller.law.rate_hz)
LATE_BUDGET_NS = 10**12  # a busy machine is no late policy
START_NS = 1_800_000_000 * 10**9


def acts_on_estimate(ticks):
    """Return whether the law acted on an estimated state, not the measured one."""
    return any(
        not np.array_equal(tick.step.estimate.q, tick.state.q_rad)
        for tick in ticks
        if tick.step.estimate is not None
    )


def shield_row(tick, *, has_state=False):
    """Return the values of ~/shield by name, as `ros/messages.py` would send them."""
    decision = tick.step.decision
    values = [
        *(tick.step.modes, decision.reason, decision.was_moved, decision.is_feasible),
        decision.distance if np.isfinite(decision.distance) else -1.0,
        *(decision.excess, tick.step.excess_after_limits, decision.half_space.value),
        *(*tick.health, tick.payload_kg, tick.was_restarted, len(tick.seen), tick.loop_ns / 1e9),
        *(
            0.0,
            tick.inference_ns / 1e6,
            *divmod(tick.state.stamp_ns, 10**9),
            tick.cause,
            tick.step.joints,
            tick.was_resumed,
        ),
    ]
    row = dict(zip(SHIELD_NAMES, values, strict=True))
    estimate = tick.step.estimate_nm
    kinds = ('feed_forward.bias', 'feed_forward.coulomb')
    if estimate is not None:
        kinds = ('kp_per_s2', 'feed_forward.estimate')
    for kind in ('kd_per_s', 'lambda_per_s', *kinds):
        for joint in ARM.joint_names:
            row[f'normal.{kind}.{joint}'] = decision.half_space.normal[len(row) - len(values)]
    row['constant'] = decision.half_space.constant
    if estimate is not None:
        row |= {f'estimate.{j}': x for j, x in zip(ARM.joint_names, estimate, strict=True)}
    if has_state:
        for name, values in zip(STATE_NAMES, tick.step.estimate[:2], strict=True):
            row |= {f'{name}.{j}': x for j, x in zip(ARM.joint_names, values, strict=True)}
        row[ESTIMATED_PAYLOAD] = tick.step.estimate.payload_kg
    return row


def log_of(ticks):
    """Return what a bag of these ticks would be read as."""
    has_state = acts_on_estimate(ticks)
    rows = [shield_row(tick, has_state=has_state) for tick in ticks]
    seen = [tick.seen or [(tick.state, tick.reference)] for tick in ticks]
    motions = [pair for pairs in seen for pair in pairs]
    stamps_ns = np.array([START_NS + tick.now_ns for tick in ticks], dtype=np.int64)
    efforts = np.array([tick.step.effort_nm for tick in ticks])
    return TickLog(
        stamp_ns=stamps_ns,
        now_ns=np.array([tick.loop_ns for tick in ticks], dtype=np.int64),
        joint_names=ARM.joint_names,
        gain_names=tuple(name.removeprefix('normal.') for name in rows[0] if 'normal.' in name),
        **motion_of([(tick.state, tick.reference) for tick in ticks]),
        effort_nm=efforts,
        wanted_nm=np.array([tick.step.wanted_nm for tick in ticks]),
        effort_before_nm=np.array([tick.effort_before_nm for tick in ticks]),
        command_row=np.arange(len(ticks)),
        sent_nm=efforts,
        gains=np.array([tick.step.decision.gains.theta for tick in ticks]),
        action=np.array([tick.action for tick in ticks]),
        is_restart=np.array([tick.was_restarted for tick in ticks]),
        is_resumed=np.array([tick.was_resumed for tick in ticks]),
        num_states=np.array([len(tick.seen) for tick in ticks]),
        is_break=np.zeros(len(ticks), dtype=bool),
        publish_time_ns=stamps_ns,
        log_time_ns=stamps_ns,
        seen=Seen(
            begin=np.cumsum([0, *map(len, seen)]),
            stamp_ns=np.array([state.stamp_ns for state, _ in motions]),
            **motion_of(motions),
        ),
        stamped=command_log(f'/{STAMPED}', stamps_ns, efforts),
        forward=command_log(f'/{FORWARD}', stamps_ns, efforts),
        shield={name: np.array([float(row[name]) for row in rows]) for name in rows[0]},
        facts={},
        num_incomplete=0,
        num_impossible=0,
        left_out_ns=frozenset(),
        problems=(),
    )


def command_log(topic, stamps_ns, efforts):
    """Return a command topic on which all was sent and received at once."""
    return CommandLog(
        topic=topic,
        stamp_ns=stamps_ns,
        publish_time_ns=stamps_ns,
        log_time_ns=stamps_ns,
        sequence=np.arange(len(stamps_ns)) + 1,
        names=(ARM.joint_names,) * len(stamps_ns),
        is_for_arm=np.ones(len(stamps_ns), dtype=bool),
        effort_nm=efforts,
        num_unreadable=0,
    )


def motion_of(pairs):
    """Return the arrays of states and references by the names that logs have for them."""
    return {
        'q_rad': np.array([state.q_rad for state, _ in pairs]),
        'qd_radps': np.array([state.qd_radps for state, _ in pairs]),
        'q_desired_rad': np.array([reference.q_rad for _, reference in pairs]),
        'qd_desired_radps': np.array([reference.qd_radps for _, reference in pairs]),
        'qdd_desired_radps2': np.array([reference.qdd_radps2 for _, reference in pairs]),
    }


def rows_of(log, rows):
    """Return some ticks of a log; what they had seen stays that of all."""
    arrays = {
        name: getattr(log, name)[rows]
        for name in type(log).__slots__
        if isinstance(getattr(log, name), np.ndarray)
    }
    shield = {name: values[rows] for name, values in log.shield.items()}
    return replace(log, **arrays, shield=shield)


class Day:
    """A controller with a policy on a simulated arm, tick by tick; what it did is in `ticks`."""

    def __init__(self, policy, seed=3, controller=SETTINGS.controller):
        episode = draw_episode(SETTINGS.plant.task, np.random.default_rng(seed), tau_z_s=2.0)
        self.requests = Requests(payload_kg=float(episode.payload_estimate_kg))
        source = MotionSource(episode.reference, LIMITS)
        self.is_mute = False
        self.policy = policy
        ask = (ARM, unguarded(controller), self._answer, source, self.requests, LATE_BUDGET_NS)
        self.controller = LiveController(*ask)
        self.plant = Rk4Arm(ARM, SETTINGS.plant.friction, controller.law.rate_hz)
        self.state = self.plant.reset(episode.start)
        self.controller.begin(self.state, None)
        self.ticks = []

    def _answer(self, window):
        mute = np.full(self.controller.loop.gain_map.size, np.nan)
        return mute if self.is_mute else self.policy(window)

    def go(self, num_ticks, *, sees=True, is_fresh=True, error=Cause.NONE):
        """Tick, with or without states, while the arm moves on; return the modes."""
        for k in range(num_ticks):
            states = [self.state] if sees else []
            failed = Cause.NONE if k else error
            tick = self.controller.drive(
                states, self.state.stamp_ns, is_fresh=is_fresh, error=failed
            )
            self.state = self.plant.step(tick.step.effort_nm)
            self.ticks.append(tick)
        return [tick.mode for tick in self.ticks[-num_ticks:]]

    def bad(self):
        """Go through every mode."""
        self.go(150)
        self.go(3, sees=False)  # late, but still fresh
        self.go(60)
        self.go(40, sees=False, is_fresh=False)
        self.go(120)
        self.requests.is_enabled = False
        self.go(40)
        self.requests.is_enabled = True
        self.go(90)
        self.go(12, error=Cause.INTERNAL_ERROR)
        self.requests.reset_fault = True
        self.go(60)
        self.requests.clear_context = True
        self.go(70)
        self.is_mute = True
        self.go(5)
        self.is_mute = False
        self.go(60)
        return self
