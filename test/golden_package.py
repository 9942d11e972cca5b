# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""All that the golden tests ask of the package: when modules move, this file changes alone.

Everything is asked for by name (of a controller, a regime, a command) and answered in arrays and
JSON, so that what is kept does not know in which module it was computed.
"""

from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import NamedTuple

from golden_values import digest, ELSEWHERE, ROOT, RTOL
import numpy as np
import pytest
from support.made_records import cells, kept_baselines, of_study
from support.tick_logs import Day

from metactl_ros.baselines import ConstantPolicy, load_learned, on_observer
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Cause, Health, Mode
from metactl_ros.settings import load_file, load_settings, make_plant, policy_file
from metactl_ros.signals import ArmState, Reference, seconds
from metactl_ros.sim.rollout import run_episode, without_warmup
from training.benchmark import controllers, draw_cases, load_benchmark, settings_in
from training.judge.rollouts import prepare
from training.learn.env import ArmEnv, EnvSettings
from training.learn.run import load_presets
from training.records import Run
from training.sweep import expand, Study

SETTINGS = load_settings()
BENCHMARK = load_benchmark()
REGIMES = tuple(regime.name for regime in BENCHMARK.regimes)
CONTROLLERS = tuple(spec.name for spec in controllers('nominal'))
PEAK_NM = (90.4, 27.9)
"""Of ct, as results/benchmark.json has it: what the motors give in `effort_limit` follows."""
NUM_ARMS = 3
PAYLOADS_KG = (0.0, 0.75, 1.5)
"""Of the arms; the oracle is told one, so all its arms have the second."""
BLIND, FAULT = int(Mode.BLIND), int(Mode.FAULT)

COMMANDS = {
    'metactl': 'metactl_ros.cli',
    **{
        name: f'training.{name}'
        for name in (
            *('benchmark', 'evaluate', 'export', 'false_alarms', 'grid', 'lyapunov_fit'),
            *('phase1', 'report', 'train', 'tune'),
        )
    },
    'networks': 'training.learn.networks',
}
"""Where the `main` of each command is; imported when it is called: some need torch."""


def run_command(name, *words):
    """Run a command in this process; return its exit code."""
    return import_module(COMMANDS[name]).main([str(word) for word in words])


@contextmanager
def smaller():
    """Make commands of `training` small: what they load is less, all else is as it is."""
    task = replace(SETTINGS.plant.task, payload_levels_kg=(0.0, 1.5))
    context = replace(SETTINGS.controller.context, horizon_s=1.0)
    settings = replace(
        SETTINGS,
        plant=replace(SETTINGS.plant, task=task),
        controller=replace(SETTINGS.controller, context=context),
    )
    hyper = {'learning_starts': 30, 'batch_size': 16, 'buffer_size': 300}
    presets = load_presets()
    presets = replace(presets, robust=replace(presets.robust, **hyper))
    cases = {'rollouts': 1, 'payloads_kg': (0.0, 1.5)}
    benchmark = replace(
        BENCHMARK,
        tuning=replace(BENCHMARK.tuning, **cases),
        judging=replace(BENCHMARK.judging, **cases),
        regimes=tuple(replace(regime, duration_s=0.2) for regime in BENCHMARK.regimes),
    )
    # They take the cases as they are: imported before, they do not see the smaller ones.
    for name in ('tune', 'false_alarms'):
        import_module(COMMANDS[name])
    with pytest.MonkeyPatch.context() as patch:
        for name in ('evaluate', 'lyapunov_fit', 'train'):
            module = import_module(COMMANDS[name])
            patch.setattr(module, 'load_settings', lambda **_: settings)
        patch.setattr(import_module(COMMANDS['train']), 'load_presets', lambda: presets)
        patch.setattr(import_module(COMMANDS['benchmark']), 'load_benchmark', lambda: benchmark)
        patch.setattr(import_module(COMMANDS['grid']), 'run_study', _half_of_study)
        yield


def _half_of_study(study, *_):
    """Return an exit code and results as of a study whose even numbers of heads failed."""
    runs = [(run, of_study(run, -10.0 - run.heads)) for run in expand(study) if run.heads % 2]
    return 1, {run.name: Run(record, run.name) for run, record in runs}


def made_runs():
    """Return records of two architectures, one of them with a seed that diverged."""
    baselines = kept_baselines('rk4')
    incrt = {'model': 'incrt', 'heads': 7, 'window': 50, 'num_parameters': 241_000}
    other = {'model': 'transformer', 'heads': 4, 'window': 20, 'num_parameters': 265_000}
    return [
        *cells(baselines, {2.0: [-62.0, -58.0, -55.0], 5.0: [-64.7, 15.0, None]}, **incrt),
        *cells(baselines, {2.0: [-44.0, -41.0, -36.0], 5.0: [-45.0, -35.0, -28.0]}, **other),
    ]


def runs_of_paper():
    """Return records of the paper's study, as if two seeds of each row had been run."""
    study = load_file(Study, ROOT / 'config' / 'studies' / 'paper.yaml', '')
    deltas = {'incrt': -60.0, 'transformer': -40.0}
    runs = [run for run in expand(study) if run.seed <= 43 and run.model in deltas]
    return [of_study(run, deltas[run.model] + run.seed - run.tau_z) for run in runs]


class Cell(NamedTuple):
    """One controller in one regime."""

    controller: str
    regime: str
    plant: str = 'rk4'
    enforcement: str = 'enforce'


@cache
def _learned():
    return load_learned(policy_file('paper_sac'), SETTINGS.arm, SETTINGS.controller)


@cache
def rounding():
    """Return a sample of what NumPy and onnxruntime compute here, as a sum."""
    x = np.linspace(-7.0, 7.0, 1001)
    parts = [np.sin(x), np.cos(x), np.tanh(x), np.exp(x), np.sqrt(np.abs(x)), np.arctan2(x, 0.3)]
    windows = np.sin(np.arange(3 * 50 * 11, dtype=np.float64)).reshape(3, 50, 11)
    return digest(*parts, x @ x, _learned().policy(windows))


def rtol_for(about):
    """Return by how much numbers may differ here from those of a file."""
    return RTOL if about['rounding'] == rounding() else ELSEWHERE


def _spec(name, sensors='nominal'):
    return next(spec for spec in controllers(sensors) if spec.name == name)


def _prepared(settings, spec, episodes):
    """Return the settings and the policy of a controller."""
    if spec.learned is not None:
        return _learned().controller, _learned().policy
    controller, policy = prepare(spec, settings, episodes)
    nominal = ControlLoop(settings.arm, controller).nominal_action
    return controller, policy or ConstantPolicy(nominal)


def rollout(cell, num_steps, nudge=0.0):
    """Return what happened in a cell, time first: arrays by name, shapes (T, N) or (T, N, ...).

    One arm in PyBullet, as numbers; a batch of them on RK4. `nudge` moves where they begin, as a
    share of the position.
    """
    regime = BENCHMARK.regime(cell.regime)
    settings = settings_in(SETTINGS, regime, PEAK_NM)
    one, several = (PAYLOADS_KG[1:2], NUM_ARMS), (PAYLOADS_KG, 1)
    payloads_kg, rollouts = one if cell.controller == 'oracle' else several
    cases = replace(BENCHMARK.judging, payloads_kg=payloads_kg, rollouts=rollouts)
    episodes = draw_cases(settings, regime, cases)
    if cell.plant == 'bullet':
        episodes = episodes.of_arm(1)
    start = replace(episodes.start, q_rad=episodes.start.q_rad * (1.0 + nudge))
    episodes = replace(episodes, start=start)
    spec = _spec(cell.controller, regime.tuned_for)
    controller, policy = _prepared(settings, spec, episodes)
    loop = ControlLoop(settings.arm, without_warmup(controller), cell.enforcement)
    plant = make_plant(cell.plant, settings)
    try:
        log = run_episode(plant, episodes, policy, loop, num_steps)
    finally:
        plant.close()
    names = ('effort_nm', 'true_q_rad', 'gains', 'excess', 'modes', 'causes', 'was_moved')
    arrays = {name: getattr(log, name)[:num_steps] for name in names}
    if cell.plant == 'bullet':
        arrays = {name: array[:, np.newaxis] for name, array in arrays.items()}
    return arrays


def sinusoid_states(num_steps, num_arms, tampered):
    """Return states of arms under ct with broken sensors, and what moved them, as arrays.

    Args:
        num_steps: How many.
        num_arms: All with one payload.
        tampered: Returns what the sensors say, (q, qd), from the number of the step and what is
            true.
    """
    regime = BENCHMARK.regime('tau_2')
    cases = replace(BENCHMARK.judging, payloads_kg=PAYLOADS_KG[1:2], rollouts=num_arms)
    episodes = draw_cases(SETTINGS, regime, cases)
    controller, policy = _prepared(SETTINGS, _spec('ct'), episodes)
    loop = ControlLoop(SETTINGS.arm, without_warmup(controller))
    plant = make_plant('rk4', SETTINGS)
    true = plant.reset(episodes.start)
    loop.reset(true)
    rows = []
    for k in range(num_steps):
        state = ArmState(true.stamp_ns, *tampered(k, true.q_rad, true.qd_radps))
        reference = episodes.reference.at(seconds(true.stamp_ns))
        window = loop.observe(state, reference, episodes.payload_estimate_kg)
        step = loop.actuate(policy(window), state, reference, state.stamp_ns)
        sensed = (state.stamp_ns, state.q_rad, state.qd_radps)
        wanted = (reference.q_rad, reference.qd_radps, reference.qdd_radps2)
        rows.append((*sensed, *wanted, step.effort_nm))
        true = plant.step(step.effort_nm)
    names = ('stamp_ns', 'q_rad', 'qd_radps', 'goal_rad', 'goal_radps', 'goal_radps2', 'acted_nm')
    found = {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    return found | {'payload_kg': np.array(episodes.payload_estimate_kg)}


def answers(name, seen, is_mute, healths):
    """Return what a controller decides on kept states: arrays by name, time first.

    Args:
        name: Of the controller.
        seen: What `sinusoid_states` returns.
        is_mute: Where the policy proposes NaN, shape (T, N).
        healths: Words of `Health` by the number of the step, if not all is well.
    """
    regime = BENCHMARK.regime('tau_2')
    cases = replace(
        BENCHMARK.judging, payloads_kg=PAYLOADS_KG[1:2], rollouts=len(seen['payload_kg'])
    )
    episodes = draw_cases(SETTINGS, regime, cases)
    controller, policy = _prepared(SETTINGS, _spec(name), episodes)
    modes = replace(controller.modes, warmup_ticks=5, recovery_ticks=10)
    loop = ControlLoop(SETTINGS.arm, replace(controller, modes=modes))
    steps, acted = [], None
    for k, stamp_ns in enumerate(seen['stamp_ns'].tolist()):
        state = ArmState(stamp_ns, seen['q_rad'][k], seen['qd_radps'][k])
        goal = Reference(*(seen[f'goal_{unit}'][k] for unit in ('rad', 'radps', 'radps2')))
        if k == 0:
            loop.reset(state)
        window = loop.observe(state, goal, seen['payload_kg'], acted)
        action = np.where(is_mute[k][:, np.newaxis], np.nan, policy(window))
        health = Health(**healths.get(k, {}))
        steps.append(loop.actuate(action, state, goal, stamp_ns, health))
        acted = seen['acted_nm'][k]
    own = ('effort_nm', 'wanted_nm', 'modes', 'causes', 'joints', 'excess_after_limits')
    found = {field: np.stack([getattr(step, field) for step in steps]) for field in own}
    of_shield = ('reason', 'was_moved', 'is_feasible', 'distance', 'excess')
    for field in of_shield:
        found[field] = np.stack([getattr(step.decision, field) for step in steps])
    found['gains'] = np.stack([step.decision.gains.theta for step in steps])
    if steps[0].estimate_nm is not None:
        found['estimate_nm'] = np.stack([step.estimate_nm for step in steps])
    return found


def error_health():
    """Return the fields of a `Health` with an error that only a fault reset clears."""
    return {'error': Cause.INTERNAL_ERROR}


def bad_day(name):
    """Return the ticks of a controller that goes through every mode: arrays by name."""
    controller, policy = _prepared(SETTINGS, _spec(name), None)
    day = Day(policy, controller=controller).bad()
    return {
        'effort_nm': np.array([tick.step.effort_nm for tick in day.ticks]),
        'modes': np.array([int(tick.mode) for tick in day.ticks]),
        'causes': np.array([int(tick.cause) for tick in day.ticks]),
    }


def env_episodes(controller, lengths, seed, num_rows):
    """Return what an environment says to random actions: arrays by name, time first.

    Args:
        controller: policy or meta_observer.
        lengths: Of the episodes, in steps.
        seed: Of episodes and actions.
        num_rows: W.
    """
    changed = SETTINGS
    if controller == 'meta_observer':
        changed = replace(SETTINGS, controller=on_observer(SETTINGS.controller))
    usual = EnvSettings(
        plant='rk4', tau_z_s=2.0, num_rows=num_rows, reward_scale=100.0, warm_start_share=0.5
    )
    env, rng, rows = ArmEnv(changed, usual), np.random.default_rng(seed), []
    for number, length in enumerate(lengths):
        observation, _ = env.reset(seed=None if number else seed)
        for _ in range(length):
            action = rng.uniform(-1.0, 1.0, env.action_space.shape).astype(np.float32)
            after, reward, is_lost, is_over, info = env.step(action)
            row = (observation, reward, is_lost, is_over, info['half_space'], info['distance'])
            rows.append((*row, info['was_moved']))
            observation = after
    env.close()
    names = ('observation', 'reward', 'is_lost', 'is_over', 'half_space', 'distance', 'was_moved')
    return {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
