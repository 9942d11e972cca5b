# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Measure speed on one core and write the figures to results/bench.json.

    python -m training.bench            # or: make bench

Timings are noisy, so things that are compared are measured in turns within one run, and the median
over the turns is kept. A gradient step is compared with stock SAC and plain attention: the same
networks by nn.MultiheadAttention, slow and obvious, to which tests hold the fast ones.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
import gc
import json
from pathlib import Path
import statistics
import time
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
import torch
from torch import nn

from metactl_ros.baselines import load_classical, load_learned
from metactl_ros.control.loop import ControlLoop
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.files import write_json
from metactl_ros.settings import load_settings, make_plant, Settings, shipped_policy, TWO_LINK
from metactl_ros.signals import Policy, seconds
from metactl_ros.sim.bullet_arm import BulletArm
from metactl_ros.sim.plant import Plant
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import without_warmup
from metactl_ros.sim.task import draw_evaluation
from training.commands import command_parser
from training.learn import networks
from training.learn.attention import AttentionBlock, TokenEmbedding
from training.learn.env import ArmEnv
from training.learn.networks import DeepAttention, NetworkConfig, ShallowAttention
from training.learn.run import FUSED
from training.learn.shielded_sac import ShieldedSAC, WindowReplayBuffer
from training.records import leaves

NUM_TURNS = 7
SEVEN_JOINTS = 'fr3'
BATCH = 1024
"""Arms of the RK4 plant."""
BATCH_SIZE = 256
NUM_TRANSITIONS = 600
CASES = {
    'incrt_k4_w20': NetworkConfig(model='incrt', heads=4, window=20),
    'incrt_k7_w50': NetworkConfig(model='incrt', heads=7, window=50),
    'transformer_w20': NetworkConfig(model='transformer', heads=4, window=20),
}


def plain_summary(
    tokens: torch.Tensor, embedding: TokenEmbedding, blocks: Iterable[nn.Module]
) -> torch.Tensor:
    """Return the last of all tokens of the last layer, (B, d): what the extractors must equal."""
    h = embedding.linear(tokens) + embedding.positions
    future = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).triu(1)
    for block in blocks:
        assert isinstance(block, AttentionBlock)
        y = block.norm(h)
        h = h + block.attention(y, y, y, attn_mask=future, need_weights=False)[0]
        if block.ffn is not None:
            h = h + block.ffn(h)
    last: torch.Tensor = h[:, -1]
    return last


class PlainShallowAttention(ShallowAttention):
    """`ShallowAttention`, plainly."""

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return h of the last token."""
        return plain_summary(tokens, self.embedding, [self.block])


class PlainDeepAttention(DeepAttention):
    """`DeepAttention`, plainly."""

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return h of the last token."""
        return plain_summary(tokens, self.embedding, self.blocks)


PLAIN = {ShallowAttention: PlainShallowAttention, DeepAttention: PlainDeepAttention}


def bench_plants(settings: Settings) -> dict[str, float]:
    """Return control steps per second of the PyBullet plant, and how much faster RK4 batches are.

    The efforts hold the arm up, so that neither plant leaves its usual speeds.
    """
    friction, rate_hz = settings.plant.friction, settings.controller.law.rate_hz
    episodes = draw_evaluation(settings.plant.task, 42, 0.75, BATCH, 2.0)
    bullet = BulletArm(settings.two_link, friction, rate_hz, settings.plant.substep_hz)
    rk4 = Rk4Arm(settings.two_link, friction, rate_hz)
    effort_nm = np.array([60.0, 15.0])
    bullet_rates, rk4_rates = [], []
    for _ in range(NUM_TURNS):
        bullet.reset(episodes.of_arm(0).start)
        rk4.reset(episodes.start)
        bullet_rates.append(1.0 / _seconds_per_step(bullet, effort_nm, 500))
        rk4_rates.append(BATCH / _seconds_per_step(rk4, np.tile(effort_nm, (BATCH, 1)), 100))
    bullet.close()
    ratios = [fast / slow for fast, slow in zip(rk4_rates, bullet_rates, strict=True)]
    return {
        'plant_bullet_steps_per_s': statistics.median(bullet_rates),
        'plant_rk4_steps_per_s_n1024': statistics.median(rk4_rates),
        'plant_rk4_ratio_n1024': statistics.median(ratios),
    }


def bench_control_step(settings: Settings) -> dict[str, float]:
    """Return the cost of observe + actuate for one arm, and what a million of them leave behind.

    Random proposals, so that the shield works; a window of 50 rows; garbage collection frozen, as
    the node does. p99 of each turn, then the median over the turns.
    """
    plant = Rk4Arm(settings.two_link, settings.plant.friction, settings.controller.law.rate_hz)
    loop = ControlLoop(settings.arm, without_warmup(settings.controller))
    episode = draw_evaluation(settings.plant.task, 42, 0.75, 1, 2.0).of_arm(0)
    rng = np.random.default_rng(0)
    state = plant.reset(episode.start)
    loop.reset(state)
    instants = []
    for _ in range(2000):
        reference = episode.reference.at(seconds(state.stamp_ns))
        action = rng.uniform(-1.0, 1.0, loop.gain_map.size)
        instants.append((state, reference, action))
        step = loop.actuate(action, state, reference, state.stamp_ns)
        state = plant.step(step.effort_nm)

    def turn() -> list[float]:
        loop.reset(instants[0][0])
        taken = []
        for state, reference, action in instants:
            begin = time.perf_counter()
            loop.observe(state, reference, 0.75)
            loop.actuate(action, state, reference, state.stamp_ns)
            taken.append(1e6 * (time.perf_counter() - begin))
        return taken

    turn()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        turns = np.array([turn() for _ in range(NUM_TURNS)])
        process = psutil.Process()
        before = process.memory_info().rss
        for _ in range(1_000_000 // len(instants)):
            turn()
        growth = process.memory_info().rss - before
    finally:
        gc.enable()
        gc.unfreeze()
    p50, p99 = _quantiles(turns)
    return {
        'control_step_p50_us': p50,
        'control_step_p99_us': p99,
        'control_step_rss_growth_kb_per_million': growth / 1024.0,
    }


def bench_joints(_: Settings) -> dict[str, float]:
    """Return the cost of observe + actuate of the momentum observer with two and seven joints.

    The two alternate turn by turn, so that what slows the machine slows both.
    """
    steps = [_observer_turn(load_settings(arm)) for arm in (TWO_LINK, SEVEN_JOINTS)]
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        turns = np.array([[turn() for turn in steps] for _ in range(NUM_TURNS)])
    finally:
        gc.enable()
        gc.unfreeze()
    two, seven = (_quantiles(turns[:, k])[0] for k in range(2))
    ratio = float(np.median(np.median(turns[:, 1], axis=1) / np.median(turns[:, 0], axis=1)))
    return {
        'control_step_p50_us_2': two,
        'control_step_p50_us_7': seven,
        'control_step_ratio_7_to_2': ratio,
    }


def _observer_turn(settings: Settings) -> Callable[[], list[float]]:
    """Return what measures the steps of one episode of a momentum observer, us."""
    name, robot = 'momentum_observer', settings.controller
    controller, policy = load_classical(name, robot, None, 0.75, settings.arm)
    assert policy is not None
    action = policy.action
    loop = ControlLoop(settings.arm, without_warmup(controller))
    plant = make_plant('rk4' if isinstance(settings.arm, Arm) else 'pinocchio', settings)
    episode = draw_evaluation(settings.plant.task, 42, 0.75, 1, 2.0).of_arm(0)
    state = plant.reset(episode.start)
    loop.reset(state)
    instants = []
    for _ in range(500):
        reference = episode.reference.at(seconds(state.stamp_ns))
        instants.append((state, reference))
        loop.observe(state, reference, 0.75)
        state = plant.step(loop.actuate(action, state, reference, state.stamp_ns).effort_nm)

    def turn() -> list[float]:
        loop.reset(instants[0][0])
        taken = []
        for state, reference in instants:
            begin = time.perf_counter()
            loop.observe(state, reference, 0.75)
            loop.actuate(action, state, reference, state.stamp_ns)
            taken.append(1e6 * (time.perf_counter() - begin))
        return taken

    return turn


def bench_policy(settings: Settings) -> dict[str, float]:
    """Return the time of one inference of the shipped policy, asked as by a node at 100 Hz.

    A period of sleep lies before each, so that caches are as cold as in the node; asked without a
    pause it takes about a third. p99 of each turn, then the median over the turns.
    """
    bundle = load_learned(shipped_policy(), settings.arm, settings.controller)
    context = bundle.controller.context
    period_s = 1.0 / settings.controller.law.rate_hz
    shape = (300, context.num_rows, len(bundle.contract.features))
    windows = np.random.default_rng(0).normal(0.0, 0.1, shape)

    def turn() -> list[float]:
        taken = []
        for window in windows:
            time.sleep(period_s)
            begin = time.perf_counter()
            bundle.policy(window)
            taken.append(1e3 * (time.perf_counter() - begin))
        return taken

    p50, p99 = _quantiles(np.array([turn() for _ in range(NUM_TURNS)]))
    num_rows = context.num_rows
    return {f'policy_alone_p50_ms_w{num_rows}': p50, f'policy_alone_p99_ms_w{num_rows}': p99}


ADAPTIVE_TRAINING = Path('results/adaptive_training.json')


def bench_adaptive(settings: Settings) -> dict[str, float]:
    """Return the time of one tick of the shipped adaptive law for one arm: bank, network, shield.

    In closed loop, without pauses; garbage collection frozen, as the node does. With ideal sensors
    and with the longest delay of the bank, from which hypotheses are run forward the farthest. p99
    of each turn, then the median over the turns. With it how long its training took, as the kept
    result of that has it.
    """
    bundle = load_learned(shipped_policy(), settings.arm, settings.controller)
    assert bundle.controller.estimator is not None
    assert bundle.controller.estimator.bank is not None
    longest = bundle.controller.estimator.bank.num_delays - 1
    delay_s = longest / settings.controller.law.rate_hz
    sensing = replace(settings.plant.sensing, transport_delay_s=delay_s)
    delayed = replace(settings, plant=replace(settings.plant, sensing=sensing))
    loop = ControlLoop(settings.arm, without_warmup(bundle.controller))
    figures = {}
    for name, world in (('adaptive_tick', settings), ('adaptive_tick_delayed', delayed)):
        _adaptive_turn(world, loop, bundle.policy)
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            turns = [_adaptive_turn(world, loop, bundle.policy) for _ in range(NUM_TURNS)]
        finally:
            gc.enable()
            gc.unfreeze()
        figures[f'{name}_p50_ms'], figures[f'{name}_p99_ms'] = _quantiles(np.array(turns))
    trained = json.loads(ADAPTIVE_TRAINING.read_text(encoding='utf-8'))
    return figures | {'adaptive_train_minutes': trained['cpu_minutes']}


def _adaptive_turn(settings: Settings, loop: ControlLoop, policy: Policy) -> list[float]:
    """Return how long each of a thousand ticks took, ms."""
    episode = draw_evaluation(settings.plant.task, 42, 0.75, 1, 2.0).of_arm(0)
    plant, taken = make_plant('rk4', settings), []
    state = plant.reset(episode.start)
    loop.reset(state)
    for _ in range(1000):
        reference = episode.reference.at(seconds(state.stamp_ns))
        begin = time.perf_counter()
        action = policy(loop.observe(state, reference, 0.75))
        step = loop.actuate(action, state, reference, state.stamp_ns)
        taken.append(1e3 * (time.perf_counter() - begin))
        state = plant.step(step.effort_nm)
    return taken


def _quantiles(turns: np.ndarray) -> tuple[float, float]:
    """Return the median, and the median over the turns of their p99."""
    return float(np.median(turns)), float(np.median(np.quantile(turns, 0.99, axis=1)))


def _seconds_per_step(plant: Plant, effort_nm: np.ndarray, num_steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(num_steps):
        plant.step(effort_nm)
    return (time.perf_counter() - begin) / num_steps


def bench_training(settings: Settings) -> dict[str, Any]:
    """Return ratios of seconds per SAC gradient step, stock to ours, and of replay memory.

    Both learners have the same networks, batches of 256 and one thread; they take turns.
    """
    torch.set_num_threads(1)
    ratios, milliseconds = {}, {}
    for name, config in CASES.items():
        ours = _learner(settings, config, is_ours=True)
        stock = _learner(settings, config, is_ours=False)
        turns = [(_seconds(stock, 3), _seconds(ours, 20)) for _ in range(NUM_TURNS)]
        ratios[name] = statistics.median(slow / fast for slow, fast in turns)
        milliseconds[name] = 1e3 * statistics.median(fast for _, fast in turns)
    return {
        'train_step_ratio': ratios,
        'train_step_ms': milliseconds,
        'replay_memory_ratio_w50': _memory_ratio(settings),
    }


def _learner(settings: Settings, config: NetworkConfig, *, is_ours: bool) -> Any:
    kind: Any = ShieldedSAC if is_ours else SAC
    network, own = networks.make_policy_kwargs(config), {}
    if is_ours:
        own = {'lagrangian_rate': 0.1, 'replay_buffer_class': WindowReplayBuffer}
        own |= {'replay_buffer_kwargs': {'num_rows': config.window}}
        network |= FUSED
    else:
        network['features_extractor_class'] = PLAIN[network['features_extractor_class']]
    model = kind(
        'MlpPolicy',
        _env(settings, config.window),
        policy_kwargs=network,
        buffer_size=NUM_TRANSITIONS,
        learning_starts=NUM_TRANSITIONS + 1,
        seed=0,
        device='cpu',
        **own,
    )
    model.learn(NUM_TRANSITIONS)
    model.train(gradient_steps=2, batch_size=BATCH_SIZE)
    return model


def _seconds(model: SAC, gradient_steps: int) -> float:
    """Return the median time of a gradient step; one before them warms the caches again."""
    taken = []
    for _ in range(gradient_steps + 1):
        begin = time.perf_counter()
        model.train(gradient_steps=1, batch_size=BATCH_SIZE)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def _memory_ratio(settings: Settings) -> float:
    """Return bytes of stock replay over bytes of ours, for 100,000 steps of a window of 50."""
    env, size = _env(settings, 50), 100_000
    ours = WindowReplayBuffer(size, env.observation_space, env.action_space, 'cpu', num_rows=50)
    stock = ReplayBuffer(size, env.observation_space, env.action_space, 'cpu')
    names = ('observations', 'next_observations', 'actions', 'rewards', 'dones', 'timeouts')
    theirs = sum(getattr(stock, name).nbytes for name in names)
    return float(theirs / sum(array.nbytes for array in ours.state().values()))


def _env(settings: Settings, window: int) -> ArmEnv:
    return ArmEnv(
        settings,
        plant='rk4',
        tau_z_s=2.0,
        num_rows=window,
        reward_scale=100.0,
        warm_start_share=0.0,
    )


BENCHMARKS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    'plants': bench_plants,
    'control_step': bench_control_step,
    'joints': bench_joints,
    'policy': bench_policy,
    'adaptive': bench_adaptive,
    'training': bench_training,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every benchmark and write the figures."""
    parser = command_parser('bench', __doc__)
    names = list(BENCHMARKS)
    parser.add_argument('--out', type=Path, default=Path('results/bench.json'))
    parser.add_argument('--only', nargs='+', choices=names, default=names, help='(all)')
    args = parser.parse_args(arguments)
    settings, console = load_settings(), Console()
    figures = json.loads(args.out.read_text()) if args.out.is_file() else {}
    for name in args.only:
        with console.status(f'{name} ...'):
            figures |= BENCHMARKS[name](settings)
    write_json(args.out, figures)
    table = Table(title=str(args.out))
    table.add_column('figure')
    table.add_column('value', justify='right')
    for name, value in leaves(figures):
        table.add_row(name, f'{value:,.4g}' if value < 100.0 else f'{value:,.0f}')
    console.print(table)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
