# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Tune every classical controller on seeds, payloads and references that are not judged.

    python -m training.tune                         # all of them, for ideal and for worse sensors
    python -m training.tune --rival ct_integral --for nominal

For the least mean RMSE under the shield, with a budget for each parameter that one has: first
the untuned gains of ct and a Halton sequence over all ranges, then Nelder and Mead's search from
the best of these (scipy). What an earlier search found, as results/tuning.json has it, stays if it
is better still. For `any`, as by a user who does not know his sensors, it is the mean
over all kinds of sensors, of each as a share of what ct has there. Writes
config/classical/SENSORS.yaml and results/tuning.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from scipy.optimize import minimize  # type: ignore[import-untyped]
from scipy.stats.qmc import Halton  # type: ignore[import-untyped]
import yaml

from metactl_ros.baselines import Baseline, BASELINES, ControllerSpec, KP_PER_S2, same_for_joints
from metactl_ros.config import one_for_all, PerJoint, shown
from metactl_ros.control.estimators.bank import BankSettings
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.estimators.disturbance import IntegralSettings, MomentumObserverSettings
from metactl_ros.control.estimators.friction_observers import LugreSettings
from metactl_ros.control.estimators.slotine_li import SlotineLiSettings
from metactl_ros.control.gain_map import Ends
from metactl_ros.errors import ConfigError
from metactl_ros.files import read_yaml, write_json
from metactl_ros.settings import load_file, load_settings, Settings, share_directory
from metactl_ros.signals import Array
from training.benchmark import draw_cases, load_benchmark, Sensors, settings_in
from training.commands import command_parser, refusing, run_jobs
from training.judge.rollouts import evaluate_controller

DRAWN, REFINED = 8, 12
"""Evaluations for each parameter: of the Halton sequence, and of the search from its best."""
MEMORY_HORIZONS_S = (0.6, 3.0, 12.0)
"""Of the bank of filters: they span the horizons of all regimes, and none is that of any."""
METHOD = 'Halton sequence, then Nelder-Mead from its best point'
LOST_RMSE_RAD = 10.0
"""Counted for a rollout that diverged."""
GAINS = ('kd_per_s', 'lambda_per_s', 'kp_per_s2')
"""Of a controller with an estimator, as they are named in what was found."""


class Parameter(NamedTuple):
    """One number that is searched for."""

    name: str
    least: float
    most: float
    is_logarithmic: bool = False
    begin: float | None = None
    """Where the search begins, if not in the middle."""

    def at(self, share: float) -> float:
        """Return the value at a share of the range, from 0 to 1."""
        if self.is_logarithmic:
            return float(self.least * (self.most / self.least) ** share)
        return float(self.least + share * (self.most - self.least))

    @property
    def first(self) -> float:
        """Return the share at which the search begins."""
        if self.begin is None:
            return 0.5
        return (self.begin - self.least) / (self.most - self.least)


def search_space(name: str, settings: Settings) -> list[Parameter]:
    """Return what is searched for."""
    box, law = settings.controller.gain_box, settings.controller.law
    kd = _within('kd_per_s', box.kd_per_s, law.nominal_kd_per_s)
    slope = _within('lambda_per_s', box.lambda_per_s, law.nominal_lambda_per_s)
    kp = _within('kp_per_s2', KP_PER_S2, 0.0)
    if name == 'ct_best':
        named = [kd._replace(name='kd'), slope._replace(name='lambda')]
        named += [_within(entry.column, entry.ends, 0.0) for entry in box.feed_forward]
        return [p._replace(name=f'{p.name}.{j}') for p in named for j in settings.arm.joint_names]
    rates = [
        _logarithmic('payload_rate', 1e-4, 1.0),
        _logarithmic('coulomb_rate', 1.0, 10_000.0),
        _logarithmic('viscous_rate', 0.1, 1000.0),
    ]
    return {
        'ct_integral': [kd, slope, kp, _logarithmic('rate_per_s2', 5.0, 10_000.0)],
        'momentum_observer': [
            kd,
            slope,
            kp,
            _logarithmic('bandwidth_radps', 2.0, 150.0),
        ],
        'slotine_li': [kd, *rates],
        'slotine_li_memory': [kd, *rates, _logarithmic('memory_rate', 1.0, 10_000.0)],
        'lugre_observer': [
            kd,
            slope,
            kp,
            _logarithmic('stiffness_nmprad', 10.0, 1000.0),
            _logarithmic('correction', 0.03, 300.0),
        ],
        'adaptive_bank': [
            kd,
            slope,
            kp,
            _logarithmic('state_correction', 0.1, 3.0),
            _logarithmic('torque_correction', 0.1, 3.0),
            _logarithmic('sharpness', 1.0, 100.0),
        ],
        'oracle': [kd, slope, kp],
    }[name]


def _within(name: str, ends: Ends, begin: PerJoint) -> Parameter:
    least, most = (one_for_all(name, end) for end in ends)
    return Parameter(name, least, most, begin=one_for_all(name, begin))


def _logarithmic(name: str, least: float, most: float) -> Parameter:
    return Parameter(name, least, most, is_logarithmic=True)


def baseline_of(name: str, settings: Settings, values: Mapping[str, float]) -> Baseline:
    """Return the controller with the given parameters."""
    if name == 'ct_best':
        return Baseline(theta=tuple(values.values()))
    # Slotine and Li's law has the slope of the sliding variable itself, and no K_p.
    slope = values.get('lambda_per_s', settings.controller.law.slope_per_s)
    gains = [values['kd_per_s'], slope, values.get('kp_per_s2', 0.0), 1.0]
    theta = same_for_joints(gains, settings.controller.num_joints)
    rest = {name: value for name, value in values.items() if name not in GAINS}
    return Baseline(theta=theta, estimator=_estimator(name, settings, rest))


def _estimator(
    name: str, settings: Settings, values: Mapping[str, float]
) -> EstimatorSettings | None:
    friction = settings.plant.friction
    if name == 'ct_integral':
        return EstimatorSettings(integral=IntegralSettings(**values))
    if name == 'momentum_observer':
        return EstimatorSettings(momentum_observer=MomentumObserverSettings(**values))
    if name.startswith('slotine_li'):
        adaptive = SlotineLiSettings(
            memory_horizons_s=MEMORY_HORIZONS_S if name == 'slotine_li_memory' else (),
            payload_most_kg=3.0,
            coulomb_most_nm=10.0,
            viscous_most_nmsprad=10.0,
            memory_most_nmprad=30.0,
            **{'memory_rate': 0.0, **values},
        )
        return EstimatorSettings(slotine_li=adaptive)
    if name == 'lugre_observer':  # given the identified friction, but no memory
        lugre = LugreSettings(
            damping_nmsprad=0.0,
            coulomb_nm=friction.coulomb_nm,
            static_nm=friction.static_nm,
            stribeck_velocity_radps=friction.stribeck_velocity_radps,
            viscous_nmsprad=friction.viscous_nmsprad,
            **values,
        )
        return EstimatorSettings(lugre_observer=lugre)
    if name == 'adaptive_bank':
        return EstimatorSettings(
            bank=bank_with(load_file(BankSettings, None, 'bank.yaml'), **values)
        )
    return None


def bank_with(
    bank: BankSettings, *, state_correction: float, torque_correction: float, sharpness: float
) -> BankSettings:
    """Return a bank that is corrected more or less than the trained one, by factors."""
    factors = (1.0, *(state_correction,) * 3, *(torque_correction,) * 2)
    pairs = zip(bank.correction, factors, strict=True)
    correction = tuple(min(gain * factor, 1.0) for gain, factor in pairs)
    return replace(bank, correction=correction, sharpness=sharpness)


def tune(
    name: str,
    sensors: str,
    drawn: int,
    refined: int,
    before: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Search the parameters of one controller for one kind of sensors; return the record.

    Args:
        name: Of the controller.
        sensors: A name of `Sensors`.
        drawn: Evaluations per parameter of the sequence.
        refined: Evaluations per parameter of the search from its best.
        before: What an earlier search found: it is kept if it is better than what this one finds.
    """
    settings, benchmark = load_settings(), load_benchmark()
    num_steps = settings.episode_steps
    space = search_space(name, settings)
    worlds = [
        settings_in(settings, benchmark.regime(regime), ())
        for regime in getattr(benchmark.sensors, sensors)
    ]
    episodes = [
        draw_cases(world, benchmark.regime(regime), benchmark.tuning)
        for world, regime in zip(worlds, getattr(benchmark.sensors, sensors), strict=True)
    ]

    def rmse_of(spec: ControllerSpec) -> list[float]:
        """Return the mean RMSE in every world."""
        rmses = []
        for world, drawn_episodes in zip(worlds, episodes, strict=True):
            found = evaluate_controller(spec, world, drawn_episodes, num_steps)
            rmse = np.where(found.is_lost, LOST_RMSE_RAD, found.rmse_rad)
            rmses.append(float(np.mean(np.minimum(rmse, LOST_RMSE_RAD))))
        return rmses

    untuned = rmse_of(ControllerSpec('ct'))
    weights = np.array([untuned[0] / rmse for rmse in untuned]) / len(untuned)

    def values_at(shares: Array) -> dict[str, float]:
        return {p.name: p.at(share) for p, share in zip(space, shares, strict=True)}

    def cost(shares: Array) -> float:
        spec = ControllerSpec(name, baseline_of(name, settings, values_at(shares)))
        return float(weights @ rmse_of(spec))

    sequence = Halton(len(space), rng=np.random.default_rng(benchmark.tuning.seed))
    shares = sequence.random(drawn * len(space))
    shares[0] = [parameter.first for parameter in space]
    costs = [cost(row) for row in shares]
    found = minimize(
        cost,
        shares[int(np.argmin(costs))],
        method='Nelder-Mead',
        bounds=[(0.0, 1.0)] * len(space),
        options={'maxfev': refined * len(space), 'xatol': 0.0, 'fatol': 0.0},
    )
    best, least, num_more = values_at(found.x), float(found.fun), 0
    if before is not None and before.keys() == best.keys():
        spec = ControllerSpec(name, baseline_of(name, settings, before))
        again, num_more = float(weights @ rmse_of(spec)), 1
        if again < least:
            best, least = dict(before), again
    return {
        'rival': name,
        'tuned_for': sensors,
        'found': best,
        'theta': list(baseline_of(name, settings, best).theta),
        'rmse': least,
        'rmse_ct': float(weights @ untuned),
        'evaluations': len(costs) + int(found.nfev) + num_more,
        'searched': [p._asdict() for p in space],
        'steps_per_evaluation': sum(num_steps * len(e.payload_estimate_kg) for e in episodes),
    }


def write_baselines(
    folder: Path, records: Sequence[Mapping[str, Any]], settings: Settings
) -> None:
    """Write a YAML file for each kind of sensors, over what was there for other controllers."""
    for sensors in sorted({record['tuned_for'] for record in records}):
        path = folder / f'{sensors}.yaml'
        content = read_yaml(path) if path.exists() or path.is_symlink() else {}
        if not isinstance(content, dict):
            raise ConfigError(f'{path}: expected a table of baselines, found {shown(content)}.')
        for record in records:
            if record['tuned_for'] == sensors:
                found = baseline_of(record['rival'], settings, record['found'])
                content[record['rival']] = _plain(asdict(found))
        head = '# Found by python -m training.tune; how, and how good: results/tuning.json\n'
        rows = {name: content[name] for name in BASELINES if name in content}
        path.write_text(head + yaml.safe_dump(rows, sort_keys=False, default_flow_style=None))


def _plain(value: Any) -> Any:
    """Return nested settings as YAML has them, without what is not given, to six digits."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return float(f'{value:.6g}') if isinstance(value, float) else value


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    console = Console(stderr=True)
    kinds = [field.name for field in fields(Sensors)]
    parser = command_parser('tune', __doc__)
    add = parser.add_argument
    add('--rival', nargs='+', choices=BASELINES, default=BASELINES, help='(all)')
    add('--for', nargs='+', choices=kinds, default=kinds, dest='sensors', help='(all)')
    add('--drawn', type=int, default=DRAWN, help='evaluations per parameter (%(default)s)')
    add('--refined', type=int, default=REFINED, help='further ones (%(default)s)')
    add('--jobs', type=int, default=os.cpu_count(), help='processes side by side (all cores)')
    add('--out', type=Path, default=Path('results/tuning.json'), help='(%(default)s)')
    add('--folder', type=Path, default=share_directory() / 'config' / 'classical')
    args = parser.parse_args(arguments)
    budget = (args.drawn, args.refined)
    kept = json.loads(args.out.read_text())['rivals'] if args.out.is_file() else []
    found = {(record['rival'], record['tuned_for']): record['found'] for record in kept}
    jobs = [
        (name, sensors, *budget, found.get((name, sensors)))
        for sensors in args.sensors
        for name in args.rival
    ]

    def say(_: int, record: Mapping[str, Any]) -> None:
        console.print(
            f'{record["tuned_for"]:15} {record["rival"]:18} {record["rmse"]:.4f} rad, '
            f'ct {record["rmse_ct"]:.4f}: {record["found"]}',
            highlight=False,
        )

    records = run_jobs(tune, jobs, args.jobs, console, title='tuning', on_result=say)
    new = {(record['rival'], record['tuned_for']) for record in records}
    rows = [r for r in kept if (r['rival'], r['tuned_for']) not in new] + records
    rows.sort(key=lambda r: (r['tuned_for'], BASELINES.index(r['rival'])))
    cases = asdict(load_benchmark().tuning)
    write_json(args.out, {'method': METHOD, 'cases': cases, 'rivals': rows})
    write_baselines(args.folder, records, load_settings())
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
