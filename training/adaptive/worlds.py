# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Random worlds: arms, what their model gets wrong, friction with memory, sensors, references.

A world is drawn once and never changes; what moves is `Motion`. A step is one linearly implicit
step in two halves, which stays stable with stiff friction at 5 ms, differentiable throughout.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from training.adaptive import bodies
from training.adaptive.bodies import Arms, Lumped

DT_S = 0.01
SUBSTEPS = 2
DELAY_SHARES = (0.42, 0.16, 0.15, 0.12, 0.10, 0.03, 0.02)
"""Of worlds whose states are 0, 1, 2... control periods late. The bank knows up to four; the rest
teach it to be gentle."""
MAX_DELAY = len(DELAY_SHARES) - 1


class World(NamedTuple):
    """Everything that does not change in an episode; (B, 2) unless stated."""

    arms: Arms
    """As they are."""
    model: Arms
    """As the controller believes."""
    payload_kg: Tensor
    """(B,)."""
    payload_hat_kg: Tensor
    """(B,): what the controller is told, 0 if nothing."""
    payload_unit_kg: Tensor
    """(B,): what the arm is rated for."""
    step_kg: Tensor
    """(B,): added at `step_at`."""
    step_at: Tensor
    """(B,), s."""
    effort: Tensor
    rate: Tensor
    hidden_limit: Tensor
    """What the motors give at most, unknown to the controller."""
    static: Tensor
    coulomb: Tensor
    stribeck: Tensor
    smoothing: Tensor
    viscous: Tensor
    memory_gain: Tensor
    tau_begin: Tensor
    """(B, 1), s."""
    tau_end: Tensor
    """(B, 1), s, after 5 s."""
    delay: Tensor
    """(B,), control periods, int64."""
    delayed: Tensor
    """(B, MAX_DELAY + 1): one-hot of `delay`."""
    velocity_noise: Tensor
    """(B, 1), rad / s."""
    is_quantised: Tensor
    """(B, 1)."""
    count_rad: Tensor
    """(B, 1)."""
    amplitude: Tensor
    omega: Tensor
    phase: Tensor
    centre: Tensor
    is_move: Tensor
    """(B, 1): from point to point instead of a sinusoid."""
    begin: Tensor
    goal: Tensor
    duration: Tensor
    """(B, 1)."""


class Motion(NamedTuple):
    """What changes."""

    q: Tensor
    v: Tensor
    z: Tensor
    """Memory, N m."""
    last_count: Tensor
    """The position that was read last, rad."""
    readings: Tensor
    """(B, MAX_DELAY + 1, 2, 2): (q, v) as measured, newest first."""


def implicit_share(x: Tensor) -> Tensor:
    """Return the share of implicitness that fits an exponential: 1/2 if soft, 1 if stiff."""
    x = x + 1e-3
    return 1.0 / (1.0 - torch.exp(-x)) - 1.0 / x


class Draw:
    """Random numbers of a batch."""

    def __init__(self, num: int, generator: torch.Generator) -> None:
        self.num, self.generator = num, generator

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return (B,) or (B, ...) numbers between two ends."""
        u = torch.rand(self.num, *shape, generator=self.generator)
        return low + (high - low) * u

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers whose logarithm is uniform."""
        return torch.exp(self.uniform(math.log(low), math.log(high), *shape))

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(self.num, *shape, generator=self.generator)

    def at_home(self, is_home: Tensor, home: tuple[float, ...], else_: Tensor) -> Tensor:
        """Return one value for arms at home, shape (B, k), others elsewhere."""
        return torch.where(is_home[:, None], torch.tensor(home), else_)

    def chance(self, share: float, *shape: int) -> Tensor:
        """Return flags that are true with a probability."""
        return torch.rand(self.num, *shape, generator=self.generator) < share


HOME_SHARE = 0.3
"""Of worlds that are near the two-link arm of the benchmark."""
HIDDEN_LIMIT_SHARE, PAYLOAD_STEP_SHARE, TOLD_SHARE = 0.12, 0.15, 0.5
"""Of worlds whose motors give less than they are sent, whose payload changes on the way, and whose
payload the controller is told."""
HOME_LINKS = (6.0, 4.0, 0.7, 0.7)
"""Masses and lengths of the shipped arm, kg and m."""
HOME_EFFORT_NM, HOME_RATE_NMPS = (150.0, 60.0), (4000.0, 1500.0)
HOME_PAYLOAD_KG, HOME_STATIC_NM, HOME_HIDDEN_NM = 3.0, 3.0, (90.0, 30.0)
HOLDING_SHARE = 1.2
"""Of the torque that holds an arm stretched out, which weak motors must give: else it is lost
whatever the law does."""
HARDEST_RADPS2 = 12.0
"""Acceleration for which the motors of a random arm are made, besides gravity."""


class _Load(NamedTuple):
    """Payloads of a batch, each (B,), kg."""

    unit: Tensor
    begin: Tensor
    told: Tensor
    step: Tensor


def draw_world(num: int, generator: torch.Generator, home: float = HOME_SHARE) -> World:
    """Draw a batch of worlds; a share `home` is near the two-link arm of the benchmark."""
    d = Draw(num, generator)
    is_home = d.chance(home)
    arms, mass = _draw_arms(d, is_home)
    load = _draw_load(d, is_home, mass)
    model = _model_of(d, arms, is_home)
    full = bodies.loaded(arms, load.begin + load.step.clamp(min=0.0))
    reach1 = full.b1 + full.b2 + HARDEST_RADPS2 * (full.a1 + full.a2 + 2.0 * full.a3)
    reach2 = full.b2 + HARDEST_RADPS2 * (full.a2 + full.a3.abs())
    need = torch.stack((reach1, reach2), -1) + HARDEST_RADPS2 * arms.rotor
    effort = d.at_home(is_home, HOME_EFFORT_NM, need * d.log_uniform(1.2, 6.0, 2))
    rate = d.at_home(is_home, HOME_RATE_NMPS, effort * d.log_uniform(10.0, 40.0, 2))
    hidden = d.at_home(is_home, HOME_HIDDEN_NM, need) * d.uniform(0.9, 1.15, 2)
    held = torch.stack((full.b1 + full.b2, full.b2), -1)
    hidden = torch.maximum(hidden, HOLDING_SHARE * held)
    hidden = torch.where(d.chance(HIDDEN_LIMIT_SHARE, 1), hidden, 1e6)
    felt = bodies.effective_inertia(bodies.inertia(full, torch.zeros(num, 2), arms.rotor))
    static = torch.minimum(0.02 * effort * d.log_uniform(0.3, 3.0, 2), 60.0 * felt)
    static = torch.where(is_home[:, None], HOME_STATIC_NM * d.log_uniform(0.35, 2.0, 1), static)
    sensors = _draw_sensors(d)
    tau = d.log_uniform(0.5, 10.0, 1)
    strength = torch.where(d.chance(0.2, 1), 0.0, d.uniform(0.0, 3.0, 1))
    return World(
        arms=arms,
        model=model,
        payload_kg=load.begin,
        payload_hat_kg=load.told,
        payload_unit_kg=load.unit,
        step_kg=load.step,
        step_at=d.uniform(0.4, 3.0),
        effort=effort,
        rate=rate,
        hidden_limit=hidden,
        static=static,
        coulomb=static * d.uniform(0.55, 1.0, 2),
        stribeck=d.log_uniform(0.05, 0.2, 2),
        smoothing=d.log_uniform(0.06, 0.25, 2),
        viscous=static * d.log_uniform(0.03, 0.6, 2),
        memory_gain=1.53 * static * strength * d.uniform(0.7, 1.3, 2),
        tau_begin=tau,
        tau_end=torch.where(d.chance(0.2, 1), d.log_uniform(0.5, 10.0, 1), tau),
        **sensors,
        **_draw_reference(d, is_home),
    )


def _draw_arms(d: 'Draw', is_home: Tensor) -> tuple[Arms, Tensor]:
    """Return arms, and their masses, (B,), kg."""
    m1 = d.log_uniform(0.8, 20.0)
    links = torch.stack(
        (m1, m1 * d.log_uniform(0.15, 1.2), d.log_uniform(0.15, 1.0), d.log_uniform(0.15, 1.0)), -1
    )
    m1, m2, l1, l2 = d.at_home(is_home, HOME_LINKS, links).unbind(-1)
    gravity = torch.where(d.chance(0.85), d.uniform(6.0, 10.0), 0.0)
    gravity = torch.where(is_home, 9.81, gravity)
    nothing = torch.zeros(d.num)
    empty = bodies.lumped(m1, m2, l1, l2, nothing, gravity)
    one = bodies.lumped(m1, m2, l1, l2, nothing + 1.0, gravity)
    per_kg = Lumped(*(b - a for a, b in zip(empty, one, strict=True)))
    straight = torch.stack((empty.a1 + empty.a2 + 2.0 * empty.a3, empty.a2), -1)
    has_rotor = ~(d.chance(0.35, 2) | is_home[:, None])
    rotor = straight * has_rotor * d.log_uniform(0.03, 3.0, 2)
    return Arms(empty, per_kg, rotor), m1 + m2


def _draw_load(d: 'Draw', is_home: Tensor, mass_kg: Tensor) -> _Load:
    """Return payloads; those that are told to the controller are so with an error."""
    unit = torch.where(is_home, HOME_PAYLOAD_KG, mass_kg * d.log_uniform(0.1, 0.35))
    begin = torch.where(d.chance(0.25), 0.0, unit * d.uniform(0.0, 0.7))
    told = (begin + 0.035 * unit * d.normal()).clamp(min=0.0)
    step = torch.where(d.chance(PAYLOAD_STEP_SHARE), unit * d.uniform(-0.2, 0.25), 0.0)
    return _Load(unit, begin, torch.where(d.chance(TOLD_SHARE), told, 0.0), step)


def _draw_reference(d: 'Draw', is_home: Tensor) -> dict[str, Tensor]:
    """Return sinusoids, and for some arms a move from point to point."""
    is_fast = d.chance(0.25, 1)
    omega = d.uniform(0.5, 1.9, 2) * torch.where(is_fast, d.uniform(1.0, 2.0, 1), 1.0)
    amplitude, phase = d.uniform(0.15, 1.0, 2), d.uniform(0.0, 2.0 * math.pi, 2)
    begin = amplitude * torch.sin(phase)
    return {
        'amplitude': amplitude,
        'omega': torch.minimum(omega, torch.sqrt(8.0 / amplitude)),
        'phase': phase,
        'centre': torch.where(is_home[:, None], 0.0, d.uniform(-1.5, 1.5, 2)),
        'is_move': d.chance(0.18, 1),
        'begin': begin,
        'goal': d.uniform(0.2, 0.95, 2) * torch.where(begin > 0.0, -1.0, 1.0),
        'duration': d.uniform(1.3, 2.6, 1),
    }


def _model_of(d: Draw, arms: Arms, is_home: Tensor) -> Arms:
    """Return the arms with an error of about 5 % in each constant, and more in a third of them."""
    exact = is_home & d.chance(0.6)
    spread = torch.where(exact, 0.0, torch.where(is_home, 0.06, 0.05))
    factors = 1.0 + spread[:, None] * d.normal(5)
    whole = torch.where(d.chance(0.35) & ~is_home, d.log_uniform(0.5, 1.15), torch.ones(d.num))
    a1, a2, a3, b1, b2 = (x * f for x, f in zip(arms.empty, factors.unbind(-1), strict=True))
    a1 = torch.maximum(a1, 1.25 * a3**2 / a2)
    rotor_error = (1.0 + torch.where(exact, 0.0, 0.08)[:, None] * d.normal(2)).clamp(0.7, 1.3)
    empty = Lumped(a1 * whole, a2 * whole, a3 * whole, b1, b2)
    return Arms(empty, arms.per_kg, arms.rotor * whole[:, None] * rotor_error)


def _draw_sensors(d: Draw) -> dict[str, Tensor]:
    """Return delays, and for those that are not late, noise or coarse encoders, too."""
    shares = torch.tensor(DELAY_SHARES).cumsum(0)[:-1]
    delay = (d.uniform(0.0, 1.0, 1) > shares).sum(-1)
    kind = d.uniform(0.0, 1.0)
    may_be_bad = (delay == 0) | d.chance(0.3)
    noise = torch.where((kind < 0.3) & may_be_bad, d.log_uniform(0.002, 0.1), 0.0)
    return {
        'delay': delay,
        'delayed': torch.nn.functional.one_hot(delay, MAX_DELAY + 1).to(noise.dtype),
        'velocity_noise': noise[:, None],
        'is_quantised': ((kind > 0.62) & may_be_bad)[:, None],
        'count_rad': 2.0 * math.pi / 2.0 ** d.uniform(10.5, 17.0, 1),
    }


def begin_motion(world: World, generator: torch.Generator) -> Motion:
    """Return the arms near the beginning of their references, a third of them not so near."""
    d = Draw(len(world.delay), generator)
    at = reference(world, torch.zeros(()))
    far = torch.where(d.chance(0.35, 1), 2.5, 1.0)
    q, v = at[0] - 0.02 * far * d.normal(2), at[1] - 0.05 * far * d.normal(2)
    z = torch.where(d.chance(0.3, 1), world.static * d.normal(2), torch.zeros_like(q))
    return Motion(q, v, z, *first_readings(world, q, v, d))


def first_readings(world: World, q: Tensor, v: Tensor, d: Draw) -> tuple[Tensor, Tensor]:
    """Return the position that was read last, and what is on its way, (B, MAX_DELAY + 1, 2, 2).

    Of half the arms it is how they moved before; of the others the first state is all there is
    until the delay has passed, as in the simulator of the benchmark.
    """
    before = _counted(world, q - (MAX_DELAY + 1) * DT_S * v)
    rows = list[Tensor]()
    for ticks in range(MAX_DELAY, -1, -1):
        before, reading = measure(world, q - ticks * DT_S * v, v, before, d.normal(2))
        rows.insert(0, reading)
    stands = d.chance(0.5)[:, None, None, None]
    readings = torch.stack(rows, 1)
    return before, torch.where(stands, readings[:, :1], readings)


def reference(world: World, time_s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q_d, qd_d and qdd_d, each (B, 2)."""
    angle = world.omega * time_s + world.phase
    sine, cosine = world.amplitude * torch.sin(angle), world.amplitude * torch.cos(angle)
    x = torch.clamp(time_s / world.duration, 0.0, 1.0)
    way = world.goal - world.begin
    blend = x**3 * (10.0 - 15.0 * x + 6.0 * x * x)
    slope = 30.0 * x * x * (1.0 - x) ** 2 / world.duration
    bend = 60.0 * x * (1.0 - x) * (1.0 - 2.0 * x) / world.duration**2
    return (
        world.centre + torch.where(world.is_move, world.begin + way * blend, sine),
        torch.where(world.is_move, way * slope, world.omega * cosine),
        torch.where(world.is_move, way * bend, -(world.omega**2) * sine),
    )


def _counted(world: World, q: Tensor) -> Tensor:
    return torch.where(world.is_quantised, torch.round(q / world.count_rad) * world.count_rad, q)


def measure(
    world: World, q: Tensor, v: Tensor, last: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the position that is read, and (q, v) as measured, (B, 2, 2)."""
    read = q + (_counted(world, q) - q).detach()
    velocity = torch.where(world.is_quantised, (read - last) / DT_S, v)
    return read, torch.stack((read, velocity + world.velocity_noise * noise), 1)


def observed(world: World, motion: Motion) -> tuple[Tensor, Tensor]:
    """Return what the controller gets now, (q, v), as late as its line is."""
    late = torch.einsum('bd,bdsj->bsj', world.delayed, motion.readings)
    return late[:, 0], late[:, 1]


def advance(
    world: World, motion: Motion, effort_nm: Tensor, time_s: Tensor, noise: Tensor
) -> Motion:
    """Return the motion one control period later; `noise` is standard normal, (B, 2)."""
    payload = world.payload_kg + torch.where(time_s >= world.step_at, world.step_kg, 0.0)
    body = bodies.loaded(world.arms, payload.clamp(min=0.0))
    tau_z = world.tau_begin + (time_s / 5.0).clamp(max=1.0) * (world.tau_end - world.tau_begin)
    limit = world.hidden_limit
    effort_nm = torch.maximum(torch.minimum(effort_nm, limit), -limit)
    q, v, z = motion.q, motion.v, motion.z
    rotor, h = world.arms.rotor, DT_S / SUBSTEPS
    with torch.no_grad():
        felt = bodies.effective_inertia(bodies.inertia(body, q, rotor))
    for _ in range(SUBSTEPS):
        direction = torch.tanh(v / world.smoothing)
        surplus = (world.static - world.coulomb) * torch.exp(-((v / world.stribeck) ** 2))
        level = world.coulomb + surplus
        damping = torch.relu(
            level * (1.0 - direction * direction) / world.smoothing
            - 2.0 * v / world.stribeck**2 * surplus * direction
            + world.viscous
        )
        with torch.no_grad():
            share = h * implicit_share(h * damping / felt)
        middle = q + 0.5 * h * v
        torque = (
            effort_nm - level * direction - world.viscous * v - z - bodies.bias(body, middle, v)
        )
        dv = h * bodies.solve(bodies.inertia(body, middle, rotor + share * damping), torque)
        mean = v + 0.5 * dv
        q, v, z = q + h * mean, v + dv, z + h * (world.memory_gain * mean - z / tau_z)
    last, reading = measure(world, q, v, motion.last_count, noise)
    readings = torch.cat((reading[:, None], motion.readings[:, :-1]), 1)
    return Motion(q, v, z, last, readings)
