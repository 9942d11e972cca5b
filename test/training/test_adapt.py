# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The adaptive law in torch: held to NumPy's models, and learned so that a run can go on."""

import copy
import csv
from dataclasses import replace
import json
import math

import numpy as np
import pytest
from support.episodes import start
import torch

from metactl_ros.control.estimators import bank as numpy_bank
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.lyapunov import kronecker_matrix
from metactl_ros.errors import ConfigError
from metactl_ros.settings import load_settings, make_plant
from metactl_ros.signals import ArmState, Reference
from metactl_ros.sim.rollout import unguarded, without_warmup
from training import adapt
from training.adaptive import (
    bank,
    bodies,
    finished,
    held_out,
    learner,
    network,
    segments,
    shield,
    worlds,
)
from training.adaptive.learner import AdaptConfig, Learner
from training.adaptive.network import Shape
from training.adaptive.segments import Adaptive

SETTINGS = load_settings()
ARM = SETTINGS.arm
PAYLOAD_MAX_KG = 3.0
SMALL = AdaptConfig(shape=Shape(), arms=12, updates=40, segment_ticks=8)


@pytest.fixture(autouse=True)
def double_precision():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


@pytest.fixture
def short_episodes(monkeypatch):
    """Learn in single precision, as always, from episodes of one or two segments."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(learner, 'LONG_TICKS', 16)
    monkeypatch.setattr(learner, 'SHORT_TICKS', 8)


def tensor(values):
    return torch.as_tensor(np.asarray(values))


def home_arms(num):
    """Return the shipped arm, as often as asked for."""
    m1, m2, l1, l2 = (torch.full((num,), x) for x in (*ARM.link_masses_kg, *ARM.link_lengths_m))
    gravity = torch.full((num,), ARM.gravity_mps2)
    empty = bodies.lumped(m1, m2, l1, l2, torch.zeros(num), gravity)
    one = bodies.lumped(m1, m2, l1, l2, torch.ones(num), gravity)
    per_kg = bodies.Lumped(*(b - a for a, b in zip(empty, one, strict=True)))
    return bodies.Arms(empty, per_kg, torch.zeros(num, 2))


def setting(num):
    effort = tensor(ARM.limits.effort_nm).expand(num, 2)
    return bank.Setting(home_arms(num), effort, torch.full((num,), PAYLOAD_MAX_KG))


def bank_settings(constants):
    mean, std, drift = (
        tuple(x.detach().tolist())
        for x in (constants.mean, constants.log_std.exp(), constants.log_drift.exp())
    )
    return numpy_bank.BankSettings(
        num_delays=bank.NUM_DELAYS,
        payload_max_kg=PAYLOAD_MAX_KG,
        prior_mean=mean,
        prior_std=std,
        payload_std=math.exp(constants.log_payload_std.item()),
        payload_mean=constants.payload_mean.item(),
        drift=drift,
        correction=network.FIRST_SHARES[:6],
        offset_drift=1e-3,
        noise=1.0,
        payload_drift=1e-6,
        beta=0.1,
        delay_logits=network.FIRST_LOGITS,
        sharpness=1.0,
    )


def test_the_bodies_are_those_of_the_closed_form():
    rng = np.random.default_rng(1)
    q, v, x = rng.normal(size=(3, 50, 2))
    payload, armature = rng.uniform(0.0, 3.0, 50), rng.uniform(0.0, 2.0, (50, 2))
    posture = ARM.body(payload).at(q, v)
    body = bodies.loaded(home_arms(50), tensor(payload))
    M = bodies.inertia(body, tensor(q), torch.zeros(50, 2))
    stiff = bodies.inertia(body, tensor(q), tensor(armature))
    for ours, theirs in (
        (bodies.bias(body, tensor(q), tensor(v)), posture.bias),
        (bodies.apply(M, tensor(x)), posture.apply(x)),
        (bodies.solve(stiff, tensor(x)), posture.solve(x, armature)),
        (bodies.effective_inertia(M), posture.effective_inertia),
    ):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)


def test_the_bank_in_torch_is_that_in_numpy_over_500_ticks_in_closed_loop():
    num, rng = 3, np.random.default_rng(2)
    torch.manual_seed(2)
    law, at = Adaptive(Shape()), setting(num)
    ours = numpy_bank.ObserverBank(bank_settings(law.constants), ARM, worlds.DT_S)
    plant = make_plant('rk4', SETTINGS)
    state = plant.reset(
        start(0.5 * np.sin(np.arange(2 * num)).reshape(num, 2), payload_kg=[0.0, 0.75, 1.5])
    )
    told = rng.uniform(0.0, 1.5, num)
    theirs = bank.begin_bank(
        law.constants, at, tensor(state.q_rad), tensor(state.qd_radps), tensor(told)
    )
    ours.begin(state.q_rad, state.qd_radps, told, theirs.sent[:, 0].detach().numpy())
    last, rate = theirs.sent[:, 0], tensor(ARM.limits.effort_rate_nmps)
    worst = 0.0
    for k in range(500):
        y = tensor(state.q_rad), tensor(state.qd_radps)
        angle = 0.012 * k + np.arange(2 * num).reshape(num, 2)
        ref = (
            tensor(0.5 * np.sin(angle)),
            tensor(0.6 * np.cos(angle)),
            tensor(-0.72 * np.sin(angle)),
        )
        raw = law.scheduler.out.bias + 0.3 * torch.randn(num, 2, network.NUM_OUT)
        with torch.no_grad():
            by = network.schedule(raw)
            load = (theirs.pi * theirs.payload).sum(1) * at.payload_unit_kg
            M = bodies.inertia(bodies.loaded(at.model, load), y[0], at.model.rotor)
            felt = bodies.effective_inertia(M)
            found = bank.innovate(at, theirs, felt, *y)
            theirs = bank.correct(law.constants, at, theirs, found, by, M)
            now = bank.to_now(at, theirs, by, felt, ref)
            last = bank.limit(*bank.law(at, now, by, ref), last, at.effort, rate)
        schedule = numpy_bank.Schedule(
            *(getattr(by, name).numpy() for name in numpy_bank.Schedule._fields)
        )
        seen = ours.innovate(state.q_rad, state.qd_radps)
        ours.correct(seen, schedule)
        belief = ours.to_now(schedule, ref[1].numpy(), ref[2].numpy())
        ours.record_effort(last.numpy())
        pairs = zip((seen.nu_q, seen.nu_v, *belief), (found.q, found.v, *now[:4]), strict=True)
        worst = max(worst, *(np.abs(a - b.numpy()).max() for a, b in pairs))
        theirs = theirs._replace(
            sent=torch.cat((last[:, None], theirs.sent[:, :-1]), 1),
            **{'y_q': y[0], 'y_v': y[1], 'v_now': now.v, 'd_now': now.d, 'pi': now.pi},
            age=theirs.age + 1.0,
        )
        state = plant.step(last.numpy().copy())
    plant.close()
    assert worst <= 1e-9
    assert np.abs(state.q_rad - ref[0].numpy()).max() < 0.1  # it did control the arm


def world_of(num=12, seed=3, **changes):
    generator = torch.Generator().manual_seed(seed)
    world = worlds.draw_world(num, generator)._replace(**changes)
    return world, worlds.begin_motion(world, generator)


FRICTION = {
    'static': 'static_nm',
    'coulomb': 'coulomb_nm',
    'stribeck': 'stribeck_velocity_radps',
    'smoothing': 'smoothing_velocity_radps',
    'viscous': 'viscous_nmsprad',
    'memory_gain': 'memory_gain_nmprad',
}


def test_the_shorter_its_steps_the_nearer_a_world_is_to_the_rk4_plant(monkeypatch):
    num = 4
    world, begin = world_of(
        num,
        arms=home_arms(num),
        payload_kg=torch.linspace(0.0, 1.5, num),
        step_kg=torch.zeros(num),
        tau_begin=torch.full((num, 1), 2.0),
        tau_end=torch.full((num, 1), 2.0),
        hidden_limit=torch.full((num, 2), 1e6),
        **{
            n: torch.full((num, 2), getattr(SETTINGS.plant.friction, k))
            for n, k in FRICTION.items()
        },
    )
    begin = begin._replace(z=torch.zeros(num, 2))
    efforts = [tensor(20.0 * np.sin(0.1 * k + np.arange(8)).reshape(num, 2)) for k in range(20)]
    plant = make_plant('rk4', SETTINGS)
    plant.reset(start(begin.q.numpy(), begin.v.numpy(), payload_kg=world.payload_kg.numpy()))
    for effort in efforts:
        plant.step(effort.numpy())
    off_rad = {}
    for substeps in (2, 20):
        monkeypatch.setattr(worlds, 'SUBSTEPS', substeps)
        motion = begin
        for k, effort in enumerate(efforts):
            now_s, noise = torch.tensor(0.01 * k), torch.zeros(num, 2)
            motion = worlds.advance(world, motion, effort, now_s, noise)
        off_rad[substeps] = np.abs(motion.q.numpy() - plant.true_q_rad).max()
    plant.close()
    assert off_rad[20] < 2e-3
    assert off_rad[20] < 0.5 * off_rad[2]


def test_a_late_line_shows_the_state_of_as_many_periods_ago():
    world, motion = world_of(7)
    delay = torch.arange(7)
    world = world._replace(
        delay=delay,
        delayed=torch.eye(7),
        velocity_noise=torch.zeros(7, 1),
        is_quantised=torch.zeros(7, 1, dtype=torch.bool),
    )
    passed = [motion.q]
    for k in range(8):
        effort, noise = torch.zeros(7, 2), torch.zeros(7, 2)
        motion = worlds.advance(world, motion, effort, torch.tensor(0.01 * k), noise)
        passed.append(motion.q)
    seen, _ = worlds.observed(world, motion)
    for arm in range(7):
        assert torch.equal(seen[arm], passed[-1 - arm][arm])


def test_gentle_gains_lose_fewer_arms_than_those_of_an_untrained_network():
    law, (world, motion) = Adaptive(Shape()), world_of(128)
    num_lost = []
    for trust in (0.0, 1.0):
        run = segments.begin(law, world, motion, trust)
        with torch.no_grad():
            for _ in range(100):
                run, counted = segments.tick(law, world, run, torch.zeros(128, 2))
        num_lost.append(int((counted.square_error >= learner.LOST_RAD**2).sum()))
    assert num_lost[0] < num_lost[1]


def test_one_seed_gives_one_law_and_a_resumed_run_goes_on_to_the_bit(short_episodes):
    first = Learner(SMALL)
    first.episode()
    state = copy.deepcopy(first.state())
    expected = first.episode()
    second = Learner(SMALL)
    second.restore(state)
    assert second.episode() == expected
    for name, value in first.law.state_dict().items():
        assert torch.equal(second.law.state_dict()[name], value), name


@pytest.mark.parametrize('kind', ['attention', 'gru', 'conv', 'mlp', 'none'])
def test_every_kind_of_network_learns_something_from_every_parameter(kind):
    law = Adaptive(Shape(kind=kind, window=20))
    world, motion = world_of(8)
    run = segments.begin(law, world, motion)
    total = 0.0
    for _ in range(10):
        run, counted = segments.tick(law, world, run, torch.zeros(8, 2))
        total = total + counted.square_error.sum() + counted.delay_loss.sum()
    total.backward()
    silent = [n for n, p in law.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert not silent


def test_no_arm_pulls_more_than_three_times_the_median():
    gradient = torch.ones(5, 2, 3)
    gradient[0] *= 1e6
    gradient[1, 0, 0] = torch.nan
    clipped = learner.clipped_per_arm(gradient)
    sizes = clipped.flatten(1).norm(dim=1)
    assert sizes.max() <= 3.0 * sizes.median() + 1e-6
    assert torch.equal(clipped[2:], gradient[2:])
    assert torch.isfinite(clipped).all()
    assert learner.clipped_per_arm(None) is None


def counted_of(errors):
    """Return what was counted in two ticks of arms with these errors, rad."""
    square = torch.tensor([errors, errors]).square().requires_grad_()
    one = torch.ones_like(square).requires_grad_()
    zero = torch.zeros_like(square)
    return segments.Counted(square, zero, zero, zero, one, zero, zero)


def test_a_lost_arm_counts_by_its_stiffness_not_by_its_error():
    counted = counted_of([0.01, 0.5, math.nan])
    loss, is_lost = learner.segment_loss(SMALL, counted, is_first=False)
    assert is_lost.tolist() == [False, True, True]
    loss.backward()
    assert (counted.square_error.grad[:, 0] > 0.0).all()
    assert not counted.square_error.grad[:, 1:].any()  # nor is it NaN where the error is
    assert (counted.stiffness.grad[:, 1:] > 0.0).all()
    assert not counted.stiffness.grad[:, 0].any()


def test_the_first_segment_of_an_episode_weighs_more():
    later, first = (
        learner.segment_loss(SMALL, counted_of([0.01]), is_first=is_first)[0].item()
        for is_first in (False, True)
    )
    assert first == pytest.approx(SMALL.first_weight * later)


def test_lost_arms_begin_anew_and_the_others_go_on_as_they_were():
    law, (world, motion) = Adaptive(Shape()), world_of(6)
    run = segments.begin(law, world, motion)
    with torch.no_grad():
        for _ in range(5):
            run, _ = segments.tick(law, world, run, torch.zeros(6, 2))
    is_lost = torch.tensor([True, False, False, True, False, False])
    anew = segments.begun_anew(law, world, run, is_lost)
    q, _, _ = worlds.reference(world, run.time_s)
    assert torch.equal(anew.motion.q[is_lost], q[is_lost])
    assert torch.equal(anew.motion.q[~is_lost], run.motion.q[~is_lost])
    assert torch.equal(anew.bank.theta[~is_lost], run.bank.theta[~is_lost])
    assert torch.equal(anew.bank.theta[is_lost][0, 0, 0], law.constants.mean)
    assert anew.time_s == run.time_s


def test_of_two_judgements_the_one_with_fewer_lost_arms_beyond_the_limit_is_better():
    better = held_out.Judgement(1, 500, 2.0, 3.0, 1.0, 0.5)
    limit = int(held_out.LOST_LIMIT * better.num_arms)
    assert better._replace(num_lost=limit).is_better_than(
        better._replace(num_lost=limit + 1, log_rmse=0.1)
    )
    assert better._replace(num_lost=limit, log_rmse=1.9).is_better_than(better)
    assert better.is_better_than(better._replace(log_rmse=2.1))
    assert not better.is_better_than(better)


def test_the_held_out_worlds_are_the_same_every_time():
    torch.set_default_dtype(torch.float32)
    law = Adaptive(Shape())
    assert held_out.judge(law, 16, 30) == held_out.judge(law, 16, 30)


@pytest.mark.parametrize(('heads', 'kind'), [(0, 'attention'), (9, 'attention'), (4, 'lstm')])
def test_a_network_that_does_not_exist_is_refused(heads, kind):
    with pytest.raises(ConfigError, match='expected'):
        Shape(heads=heads, kind=kind)


@pytest.fixture
def quick(monkeypatch, short_episodes):
    monkeypatch.setattr(adapt, 'judge', lambda law: held_out.judge(law, 8, 30))
    return ['--eager', '--arms', '8', '--updates', '3']


def test_a_run_leaves_its_configuration_log_best_law_and_result(quick, tmp_path):
    out = tmp_path / 'run'
    assert adapt.main([*quick, '--out', str(out)]) == 0
    result = json.loads((out / adapt.RESULT).read_text())
    assert result['run']['updates'] == 3
    assert {'code', 'command', 'versions', 'cpu_minutes', 'best'} <= set(result)
    with (out / adapt.LOG).open() as file:
        assert [float(row['update']) for row in csv.DictReader(file)] == [1.0, 2.0, 3.0]
    law = Adaptive(Shape())
    law.load_state_dict(torch.load(out / adapt.BEST, weights_only=True))
    assert adapt.main([*quick, '--out', str(out)]) == 2  # it is there already


def test_a_stopped_run_is_resumed_and_ends_as_if_it_had_not_been(quick, tmp_path, monkeypatch):
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    assert adapt.main([*quick, '--out', str(whole)]) == 0

    class AskedAtOnce(adapt.Stop):
        def __init__(self):
            super().__init__()
            self.num_looks = 0

        @property
        def is_asked(self):
            self.num_looks += 1
            return self.num_looks > 1

        @is_asked.setter
        def is_asked(self, _):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(adapt, 'Stop', AskedAtOnce)
        assert adapt.main([*quick, '--out', str(parts)]) == 3
    assert adapt.main(['--eager', '--resume', str(parts)]) == 0
    ours, theirs = (torch.load(p / adapt.BEST, weights_only=True) for p in (whole, parts))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_to_resume_what_is_no_run_is_refused(tmp_path, capsys):
    assert adapt.main(['--resume', str(tmp_path)]) == 2
    assert 'give a run of training.adapt' in capsys.readouterr().err


SLOW_NMPS = (1000.0, 400.0)


def shielded(controller):
    """Return settings with the shield of training, for the shipped arm."""
    P = kronecker_matrix(shield.CROSS_S, shield.SPEED_S2, 2)
    rho = shield.RHO_SHARE * bank.FRICTION_SHARE * np.array(ARM.limits.effort_nm)
    lyapunov = replace(
        controller.lyapunov,
        alpha_per_s=shield.ALPHA_PER_S,
        p_matrix=tuple(map(tuple, P.tolist())),
        rho_nm=tuple(rho.tolist()),
    )
    return replace(controller, lyapunov=lyapunov)


def test_the_loop_does_what_the_copy_in_torch_does_over_500_ticks():
    """Tokens, network, bank and law: the same world, once as trained and once as driven."""
    torch.manual_seed(3)
    law = Adaptive(Shape())
    for parameter in law.scheduler.parameters():  # away from where it begins: all must matter
        parameter.data.add_(0.005 * torch.randn_like(parameter))
    law.scheduler.out.bias.data[-3:] = -3.0  # soft gains, which bear a delay that is not known
    generator = torch.Generator().manual_seed(8)
    world = worlds.draw_world(3, generator, home=1.0)
    world = world._replace(
        arms=home_arms(3),
        model=home_arms(3),
        rate=tensor(SLOW_NMPS).expand(3, 2),
        velocity_noise=torch.tensor([[0.0], [0.01], [0.0]]),
        is_quantised=torch.zeros(3, 1, dtype=torch.bool),
        is_move=torch.zeros(3, 1, dtype=torch.bool),
        delay=torch.tensor([0, 0, 2]),
        delayed=torch.nn.functional.one_hot(torch.tensor([0, 0, 2]), 7).double(),
    )
    trained = finished.Adapted(SMALL, law, {})
    controller = without_warmup(
        unguarded(finished.adaptive_controller(SETTINGS.controller, trained))
    )
    arm = replace(ARM, limits=replace(ARM.limits, effort_rate_nmps=SLOW_NMPS))
    loop = ControlLoop(arm, shielded(controller))
    policy = trained.policy(2)
    motion = worlds.begin_motion(world, generator)
    run = segments.begin(law, world, motion)
    level = loop.lyapunov.target_level / loop.lyapunov.P[0, 0]  # P is scaled there
    assert run.level.numpy() == pytest.approx(level, rel=0.02)  # of fewer postures
    run = run._replace(level=torch.full((3,), level))
    worst, num_limited, num_moved = 0.0, 0, 0
    for tick in range(500):
        y_q, y_v = (x.numpy() for x in worlds.observed(world, run.motion))
        ref = [x.numpy() for x in worlds.reference(world, run.time_s)]
        state, reference = ArmState(tick * 10_000_000, y_q, y_v), Reference(*ref)
        if tick == 0:
            loop.reset(state, run.last.numpy())
        window = loop.observe(state, reference, world.payload_hat_kg.numpy())
        step = loop.actuate(policy(window), state, reference, state.stamp_ns)
        noise = torch.randn(3, 2, generator=generator)
        with torch.no_grad():
            run, _ = segments.tick(law, world, run, noise)
        worst = max(worst, np.abs(step.effort_nm - run.last.numpy()).max())
        assert not step.modes.any(), (tick, step.modes, step.causes)
        num_limited += int((step.effort_nm != step.wanted_nm).any())
        num_moved += int(step.decision.was_moved.any())
    assert worst < 1e-9
    assert num_limited > 0  # what the limits leave is the same, too
    assert num_moved > 0  # and what the shield does
