# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Efforts and decisions of every controller, computed for `test/golden/efforts.npz`.

    PYTHONPATH=. python test/golden_efforts.py            # compare, and say how sensitive each is
    PYTHONPATH=. python test/golden_efforts.py --write    # keep what this code computes

Kept is, each for every controller of the benchmark:

    rollouts     every regime in closed loop: three arms on RK4 under the shield; `tau_2` with a
                 shield that only counts, too, and one arm in PyBullet
    answers      states of broken sensors and what the loop decides on them, tick by tick: no plant
                 is in it, so that nothing adds up

and of some of them a bad day of a controller through every mode (`days`), and what environments
say to random actions (`envs`).

Efforts, modes, causes and whether the shield moved a proposal are kept of every step; positions,
gains, certificates and estimates of every tenth, and of all steps their SHA-256.

In closed loop a difference grows. For each rollout the file keeps how far its efforts go when the
arms begin 1e-15 of their position elsewhere, as a share of the largest effort (`sensitivity`):
where that is near 1e-9, a miss of 1e-9 is no mistake yet. So where RTOL is not 0.0, a rollout may
differ by GROWTH times that, too; `answers` may not. An encoder may count one step more or less for
a last digit; so little does not show in `sensitivity`.

Without AVX-512 NumPy rounds otherwise: efforts on kept states then differ by 2e-16, and in closed
loop by up to 4e-7, as `sensitivity` says; see ELSEWHERE.
"""

import argparse
import json
import sys

from golden_package import (
    answers,
    bad_day,
    Cell,
    CONTROLLERS,
    env_episodes,
    error_health,
    REGIMES,
    rollout,
    rounding,
    sinusoid_states,
)
from golden_values import array_difference, commit, digest, FOLDER, RTOL
import numpy as np

FILE = FOLDER / 'efforts.npz'
NUM_STEPS = 100
OTHER_STEPS = {'payload_step': 260, 'point_to_point': 210, 'long': 20}
"""Where what is special about a regime comes later; `long` begins as `tau_2` does."""
GROUPS = (
    *((regime, 'rk4', 'enforce') for regime in REGIMES),
    ('tau_2', 'rk4', 'count'),
    ('tau_2', 'bullet', 'enforce'),
)
SPARSE = 10
NUDGE = 1e-15
GROWTH = 30.0
"""Other last digits, at every step, may take a rollout further than one nudge of its start."""
WHOLE = ('effort_nm', 'modes', 'causes', 'joints', 'reason', 'was_moved', 'is_feasible')
"""Kept of every step; the rest of every tenth."""
DAYS = ('ct', 'momentum_observer', 'robust_tau2')
ENVS = ('policy', 'meta_observer')
STATES, ARMS = 160, 8
HEALTHS = {
    100: {'policy_is_on_time': False},
    **{step: {'state_is_fresh': False} for step in range(110, 114)},
    **{step: {'reference_is_valid': False} for step in range(122, 126)},
    135: error_health(),
    140: {'reset_requested': True},
}


def thinned(arrays):
    """Return what is kept of arrays by name: small integers, every tenth row, and the sum."""
    found = {}
    for name, array in arrays.items():
        small = array.astype(np.int8) if array.dtype.kind in 'bi' else array
        found[name] = small if name in WHOLE else small[::SPARSE]
    return found | {'sha256': digest(*(arrays[name] for name in sorted(arrays)))}


def rollouts(regime, plant, enforcement, nudge=0.0):
    """Yield the name of each controller in a group, and what is kept of it."""
    for controller in CONTROLLERS:
        cell = Cell(controller, regime, plant, enforcement)
        yield controller, thinned(rollout(cell, OTHER_STEPS.get(regime, NUM_STEPS), nudge))


def broken_states():
    """Return states and references to answer: from 30 on each arm but the first has a fault."""
    frozen = []

    def broken(step, q, qd):
        q, qd = q.copy(), qd.copy()
        if step == 30:
            frozen[:] = q[3].copy(), qd[3].copy()
        if step >= 30:
            qd[1] *= -1.0
            qd[2, 1] *= 180.0 / np.pi
            q[3], qd[3] = frozen
            q[5, 0] += 0.4 * (step < 60)
        if 30 <= step < 36:
            q[4, 0] = np.nan
        return q, qd

    seen = sinusoid_states(STATES, ARMS, broken)
    seen['goal_rad'][40:50, 6] = np.nan
    return seen


def answered(seen):
    """Yield the name of each controller, and what is kept of its answers."""
    is_mute = np.zeros((STATES, ARMS), dtype=bool)
    is_mute[40:45, 7] = True
    for controller in CONTROLLERS:
        yield controller, thinned(answers(controller, seen, is_mute, HEALTHS))


def days():
    """Yield the name of each controller that has a bad day, and what is kept of it."""
    for controller in DAYS:
        yield controller, thinned(bad_day(controller))


def envs():
    """Yield the name of each environment, and what is kept of it."""
    for controller in ENVS:
        yield controller, thinned(env_episodes(controller, (60, 30), seed=3, num_rows=20))


def computed():
    """Return all that is kept, by name."""
    found = {}
    for group in GROUPS:
        found |= named('.'.join(group), rollouts(*group))
    seen = broken_states()
    found |= {f'seen.{name}': array for name, array in seen.items()}
    found |= named('answers', answered(seen))
    return found | named('days', days()) | named('envs', envs())


def named(group, items):
    return {
        f'{group}.{item}.{name}': array for item, arrays in items for name, array in arrays.items()
    }


def differences(kept, group, items, rtol, sensitivity):
    """Return what is wrong with a group, in words."""
    found = named(group, items)
    own = {name for name in kept if name.startswith(f'{group}.')}
    wrong = [f'{name}: not in both' for name in sorted(own ^ found.keys())]
    for name in sorted(own & found.keys()):
        grown = GROWTH * sensitivity.get(name.rpartition('.')[0], 0.0)
        if not isinstance(kept[name], str):
            most = max(rtol, grown) if rtol > 0.0 else 0.0
            said = array_difference(kept[name], found[name], most)
        else:
            said = '' if rtol > 0.0 or kept[name] == found[name] else 'other bits between'
        wrong += [f'{name}: {said}'] if said else []
    return wrong


def read():
    """Return the kept arrays and sums by name, and what is known of them."""
    with np.load(FILE) as content:
        arrays = {name: content[name] for name in content.files}
    about = json.loads(str(arrays.pop('about')))
    return arrays | about.pop('sums'), about


def seen_in(kept):
    """Return the states to answer."""
    return {name.removeprefix('seen.'): kept[name] for name in kept if name.startswith('seen.')}


def write():
    found, sensitivity = computed(), {}
    for group in GROUPS:
        for controller, arrays in rollouts(*group, nudge=NUDGE):
            name = f'{".".join(group)}.{controller}'
            kept, other = found[f'{name}.effort_nm'], arrays['effort_nm']
            sensitivity[name] = float(f'{np.abs(other - kept).max() / np.abs(kept).max():.1e}')
    sums = {name: value for name, value in found.items() if isinstance(value, str)}
    arrays = {name: value for name, value in found.items() if name not in sums}
    about = {'commit': commit(), 'rounding': rounding(), 'sensitivity': sensitivity, 'sums': sums}
    np.savez_compressed(FILE, about=np.array(json.dumps(about)), **arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', action='store_true', help='keep what this code computes')
    if parser.parse_args().write:
        write()
    kept, about = read()
    groups = [('.'.join(group), rollouts(*group)) for group in GROUPS]
    groups += [('answers', answered(seen_in(kept))), ('days', days()), ('envs', envs())]
    rule = (RTOL, about['sensitivity'])
    wrong = [line for group in groups for line in differences(kept, *group, *rule)]
    for line in wrong:
        known = about['sensitivity'].get(line.partition(': ')[0].rpartition('.')[0])
        sys.stdout.write(f'{line}{"" if known is None else f", sensitivity {known:.1g}"}\n')
    sys.stdout.write(
        f'{len(wrong)} of {len(kept)} values differ from those of {about["commit"]}; this machine '
        f'rounds {"alike" if about["rounding"] == rounding() else "otherwise"}\n'
    )
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
