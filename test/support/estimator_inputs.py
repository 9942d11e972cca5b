# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What tests show to estimators, and arms that are driven with one in their control loop."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from metactl_ros.baselines import Baseline, make_classical
from metactl_ros.control.estimators.choice import make_estimator
from metactl_ros.control.estimators.estimator import EstimatorInput
from metactl_ros.control.law import tracking_error, TrackingState
from metactl_ros.control.loop import ControlLoop
from metactl_ros.motion.reference import Sinusoid
from metactl_ros.settings import load_settings
from metactl_ros.signals import Reference, seconds
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import without_warmup
from support.episodes import start

SETTINGS = load_settings()
ARM, LAW = SETTINGS.arm, SETTINGS.controller.law
FRICTION, TASK = SETTINGS.plant.friction, SETTINGS.plant.task
MOTION = Sinusoid(np.array(TASK.amplitude_rad), np.array(TASK.omega_radps), np.zeros(2))
NO_FRICTION = replace(
    FRICTION, coulomb_nm=0.0, static_nm=0.0, viscous_nmsprad=0.0, memory_gain_nmprad=0.0
)
NO_LIMITS = replace(ARM.limits, effort_nm=(1e9, 1e9), effort_rate_nmps=(1e12, 1e12))


def estimator_input(
    q, qd, wanted, *, time_s=0.0, passed_s=0.01, effort_nm=(0.0, 0.0), payload_kg=0.0, learn=True
) -> EstimatorInput:
    """Return what an estimator is shown of arrays (..., 2) and a `Reference`."""
    at = TrackingState(q, qd, wanted.q_rad, wanted.qd_radps, wanted.qdd_radps2)
    error, effort = tracking_error(LAW, at), np.array(effort_nm, dtype=np.float64)
    payload_kg, learn = np.asarray(payload_kg, dtype=np.float64), np.asarray(learn)
    return EstimatorInput(
        time_s, passed_s, at, error, ARM.body().at(q, qd), effort, payload_kg, learn
    )


def at_goal(q, qd, qdd=(0.0, 0.0), **options) -> EstimatorInput:
    """Return the input with an arm that is where it should be."""
    q, qd, qdd = (np.array(x, dtype=np.float64) for x in (q, qd, qdd))
    return estimator_input(q, qd, Reference(q, qd, qdd), **options)


def random_inputs(seed, num, lead=()) -> list[EstimatorInput]:
    """Return inputs with arms that move at random and may learn at random, 10 ms apart."""
    rng = np.random.default_rng(seed)
    drawn = []
    for k in range(num):
        q, qd, q_d, qd_d, qdd_d, effort = rng.uniform(-1.5, 1.5, (6, *lead, 2))
        may_learn = rng.random(lead) < 0.8
        drawn.append(
            estimator_input(
                q,
                qd,
                Reference(q + 0.2 * q_d, qd + qd_d, 3.0 * qdd_d),
                time_s=0.01 * k,
                passed_s=0.01 * (k > 0),
                effort_nm=30.0 * effort,
                payload_kg=rng.uniform(0.0, 1.5, lead),
                learn=may_learn,
            )
        )
    return drawn


def of_arm(together, index):
    """Return the input of one arm of a batch."""
    at = TrackingState(*(part[index] for part in together.at))
    return together._replace(
        at=at,
        error=tracking_error(LAW, at),
        posture=ARM.body().at(at.q, at.qd),
        effort_nm=together.effort_nm[index],
        payload_estimate_kg=np.asarray(together.payload_estimate_kg[index]),
        may_learn=np.asarray(together.may_learn[index]),
    )


def assert_batch_equals_arms(settings) -> None:
    """Assert that an estimator gives each arm of a batch what it would give that arm alone."""
    inputs = random_inputs(3, 60, (4,))
    estimator = make_estimator(settings, ARM, LAW)
    together = np.stack([estimator.update(one) for one in inputs])
    assert np.abs(together).max() > 1.0
    for arm in range(4):
        estimator.reset()
        alone = [estimator.update(of_arm(one, arm)) for one in inputs]
        np.testing.assert_allclose(together[:, arm], alone, rtol=1e-12, atol=1e-12)


class Recorder:
    """An estimator that keeps its inputs and returns what a test sets."""

    def __init__(self, answer=(0.0, 0.0)):
        self.inputs, self.num_resets, self.answer = [], 0, np.array(answer)

    def reset(self):
        """Count it."""
        self.num_resets += 1

    def update(self, given):
        """Keep it."""
        self.inputs.append(given)
        return self.answer


class Ride(NamedTuple):
    """A run in closed loop, time first; row k is at k periods."""

    time_s: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    q_desired: np.ndarray
    qd_desired: np.ndarray
    qdd_desired: np.ndarray
    effort_nm: np.ndarray
    estimate_nm: np.ndarray
    memory_nm: np.ndarray

    @property
    def s(self) -> np.ndarray:
        """The sliding variable."""
        return self.qd_desired - self.qd + LAW.slope_per_s * (self.q_desired - self.q)


def ride(
    estimator,
    theta,
    num_steps,
    *,
    rate_hz=1000.0,
    motion=MOTION,
    friction=NO_FRICTION,
    payload_kg=0.0,
    payload_estimate_kg=0.0,
    push=None,
) -> Ride:
    """Drive a simulated arm with an estimator in its loop; neither limit nor shield interferes.

    The arm begins on its reference. What `push` returns for a state acts on it as d, in N m.
    """
    arm = replace(ARM, limits=NO_LIMITS)
    shipped = without_warmup(SETTINGS.controller)
    shipped = replace(shipped, law=replace(LAW, rate_hz=rate_hz))
    controller, policy = make_classical(shipped, Baseline(theta=theta, estimator=estimator))
    loop = ControlLoop(arm, controller, 'count')
    plant = Rk4Arm(arm, friction, rate_hz)
    first = motion.at(0.0)
    state = plant.reset(start(first.q_rad, first.qd_radps, payload_kg=payload_kg))
    loop.reset(state)
    rows = []
    for _ in range(num_steps):
        wanted = motion.at(seconds(state.stamp_ns))
        window = loop.observe(state, wanted, payload_estimate_kg)
        step = loop.actuate(policy(window), state, wanted, state.stamp_ns)
        goal = (wanted.q_rad, wanted.qd_radps, wanted.qdd_radps2)
        seen = (seconds(state.stamp_ns), state.q_rad, state.qd_radps, *goal)
        rows.append((*seen, step.effort_nm, step.estimate_nm, plant.memory_nm))
        taken = 0.0 if push is None else push(state)
        state = plant.step(step.effort_nm - taken)
    return Ride(*map(np.array, zip(*rows, strict=True)))
