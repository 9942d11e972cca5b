# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every constant gain of the shipped box is stable at 100 Hz, whatever the arm carries."""

from dataclasses import replace
import itertools

import numpy as np
import pytest
from support.episodes import start

from metactl_ros.control.gain_map import GainMap
from metactl_ros.control.loop import ControlLoop
from metactl_ros.metrics import tracking_rmse
from metactl_ros.motion.reference import Hold
from metactl_ros.settings import make_plant
from metactl_ros.signals import Reference
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import run_episode, unguarded, without_warmup
from metactl_ros.sim.task import draw_evaluation

POSTURES = list(itertools.product(np.linspace(-np.pi, np.pi, 13), np.linspace(-2.6, 2.6, 9)))


def constant_gain_loop(settings):
    """Return a loop that applies any gains, whatever the shield, the limits or the modes say.

    The gain box is widened so that gains below the shipped one can be tried.
    """
    box = replace(settings.controller.gain_box, kd_per_s=(1.0, 60.0))
    controller = replace(without_warmup(settings.controller), gain_box=box)
    far = replace(settings.arm.limits, position_rad=(9.0, 9.0), velocity_radps=(99.0, 99.0))
    return ControlLoop(
        replace(settings.arm, limits=far), unguarded(controller), enforcement='count'
    )


def spectral_radius(settings, friction, gains, payload_kg, q_rad):
    """Return the largest |eigenvalue| of the sampled loop, linearised where the arm can rest.

    The unmodelled payload pulls the arm off its reference; the reference is placed so that the
    loop is at rest in the wanted posture, sag and all. State (q, qd, z), one step of 10 ms.
    """
    law, model, q = settings.controller.law, settings.arm.body(), q_rad
    loaded = settings.arm.body(payload_kg).gravity(q)
    sag = loaded - model.gravity(q)
    stiffness = gains[:, :2] * law.slope_per_s
    rest = q_rad + model.at(q, np.zeros_like(q)).solve(sag) / stiffness
    reference = Reference(rest, np.zeros_like(rest), np.zeros_like(rest))
    plant = Rk4Arm(settings.arm, friction, law.rate_hz)
    loop = constant_gain_loop(settings)
    action = loop.gain_map.action(gains)

    def advance(x):
        state = plant.reset(start(x[:, :2], x[:, 2:4], x[:, 4:], payload_kg))
        loop.reset(state)
        state = plant.step(loop.actuate(action, state, reference, 0).wanted_nm)
        return np.concatenate([state.q_rad, state.qd_radps, plant.memory_nm], axis=-1)

    at_rest = np.concatenate([q_rad, np.zeros((len(q_rad), 4))], axis=-1)
    np.testing.assert_allclose(advance(at_rest), at_rest, rtol=0, atol=1e-9)
    h = 1e-6
    columns = [(advance(at_rest + h * d) - advance(at_rest - h * d)) / (2 * h) for d in np.eye(6)]
    return np.abs(np.linalg.eigvals(np.stack(columns, axis=-1))).max(axis=-1)


def grid(settings, kd_min=None):
    """Return gains, payloads and postures: three values of each gain of each joint."""
    box = GainMap(settings.controller.gain_box, 2)
    lower, upper = box.lower, box.upper
    if kd_min is not None:
        lower = [kd_min, kd_min, *lower[2:]]
    levels = [
        np.array([low, (low + high) / 2, high]) for low, high in zip(lower, upper, strict=True)
    ]
    cases = list(itertools.product(*levels[:4], (0.0, 0.75, 1.5), POSTURES))
    gains = np.array([[*case[:4], 0.0, 0.0, 0.0, 0.0] for case in cases])
    return gains, np.array([case[4] for case in cases]), np.array([case[5] for case in cases])


def frictions(settings):
    full = settings.plant.friction
    sliding = replace(full, coulomb_nm=0.0, static_nm=0.0)
    return [full, sliding, replace(sliding, viscous_nmsprad=0.0, memory_gain_nmprad=0.0)]


def test_every_gain_of_the_box_is_stable_in_every_posture_for_every_payload(settings):
    for friction in frictions(settings):
        radius = spectral_radius(settings, friction, *grid(settings))
        assert radius.max() < 1.0


@pytest.mark.parametrize(('kd_min', 'is_stable'), [(5.0, False), (8.2, False), (8.4, True)])
def test_a_lower_kd_bound_is_stable_from_about_8_3_on(settings, kd_min, is_stable):
    no_help = frictions(settings)[-1]
    radius = spectral_radius(settings, no_help, *grid(settings, kd_min=kd_min)).max()
    assert (radius < 1.0) == is_stable


def corners(settings):
    """Return a loop without a shield, and the corners of the box in K_d and Lambda as actions."""
    box = GainMap(settings.controller.gain_box, 2)
    ends = list(zip(box.lower[:4], box.upper[:4], strict=True))
    gains = np.array([[*corner, 0.0, 0.0, 0.0, 0.0] for corner in itertools.product(*ends)])
    loop = constant_gain_loop(settings)
    return loop, loop.gain_map.action(gains)


@pytest.mark.parametrize('payload', [0.0, 1.5])
def test_the_corners_of_the_box_track_on_the_rk4_plant(settings, payload):
    loop, actions = corners(settings)
    episodes = draw_evaluation(settings.plant.task, 3, payload, len(actions), 2.0)
    log = run_episode(make_plant('rk4', settings), episodes, lambda _: actions, loop, 1000)
    assert tracking_rmse(log.q_desired_rad, log.q_rad).max() < 0.5
    # The softest gains sag under 1.5 kg, but none runs away: the second half is no worse.
    error = np.abs(log.q_desired_rad - log.q_rad).max(axis=(1, 2))
    assert error[500:].max() < 1.1 * error[:500].max()


def test_the_corners_of_the_box_track_on_the_bullet_plant(settings):
    loop, actions = corners(settings)
    plant = make_plant('bullet', settings)
    episodes = draw_evaluation(settings.plant.task, 3, 1.5, len(actions), 2.0)
    for index, action in enumerate(actions):
        log = run_episode(plant, episodes.of_arm(index), lambda _, a=action: a, loop, 500)
        assert tracking_rmse(log.q_desired_rad, log.q_rad) < 0.5
    plant.close()


@pytest.mark.parametrize('name', ['rk4', 'bullet'])
def test_a_held_arm_comes_to_rest(settings, name):
    plant = make_plant(name, settings)
    episode = draw_evaluation(settings.plant.task, 5, 1.5, 1, 2.0).of_arm(0)
    held = replace(episode, reference=Hold(np.array([0.4, -0.6])))
    begin = replace(held.start, q_rad=np.array([0.4, -0.6]), qd_radps=np.zeros(2))
    held = replace(held, start=begin)
    loop, actions = corners(settings)
    log = run_episode(plant, held, lambda _: actions[-1], loop, 1500)
    plant.close()
    last_velocity = np.diff(log.q_rad[-100:], axis=0) / 0.01
    assert np.abs(last_velocity).max() < 1e-3
