# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Behind `metactl replay`: whether a bag can be computed again to the bit, and what is in it.

Exit codes: 0 equal and certified, 1 it differs, a certificate is violated or a command is not the
one decided, 2 it cannot be used, 3 parts of it are missing or nothing could be compared, whatever
else was found.

In open loop two controllers are in one table: of the recorded one what it did, and how well the
arm tracked; of the other one what it would have commanded at these states. The other never moved
the arm, so it has no tracking error.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from metactl_ros.bag.reader import BagError
from metactl_ros.bag.tick_log import read_ticks, TickLog
from metactl_ros.bag.topics import RecordedController, SETTINGS
from metactl_ros.baselines import (
    ConstantPolicy,
    CONTROLLERS,
    gain_boxes,
    GRAVITY_COMPENSATION,
    load_classical,
    load_learned,
)
from metactl_ros.check.certificates import (
    check_certificates,
    unverifiable_ticks,
    Violation,
)
from metactl_ros.check.guided_effort import guided_ticks
from metactl_ros.check.sent_commands import check_sent, SentCheck
from metactl_ros.config import shown
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.errors import ConfigError, legible
from metactl_ros.files import write_json
from metactl_ros.policy.bundle import sha256_of
from metactl_ros.replay.recompute import (
    effort_figures,
    gain_figures,
    gain_names,
    mode_share,
    reproduce,
    Reproduction,
    summarise,
    tick_counts,
)
from metactl_ros.settings import (
    arm_path,
    load_arm,
    load_controller,
    shipped_policies,
    shipped_policy,
    TWO_LINK,
)
from metactl_ros.signals import Policy

SHA = 'bundle sha256'
WHO = ('controller', 'classical file', 'bundle', 'bundle sha256')
OPEN_LOOP = 'open loop: on the recorded states, which another controller led to'
RECORDED, WOULD = 'recorded run: ', 'open loop, would have: '


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayRequest:
    """Which bag to replay, and with which controller."""

    bag: Path
    bundle: Path | None = None
    """Of a policy; by default the recorded one."""
    controller: str | None = None
    """A classical one instead of a policy; by default the recorded one."""
    classical_file: Path | None = None
    """Where its gains are; by default those recorded, or else the shipped ones."""
    arm_file: Path | None = None
    controller_file: Path | None = None
    node: str = 'controller'


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """All that a replay found."""

    facts: dict[str, Any]
    """As replay.json has it."""
    log: TickLog
    again: Reproduction
    uncertified: Sequence[Violation]
    """Of the certificates."""
    sent: SentCheck

    @property
    def problems(self) -> tuple[str, ...]:
        """Why this is not all that happened; empty if it is."""
        is_vain = not self.again.is_open_loop and not self.again.is_compared.any()
        vain = ('no tick could be compared',) if is_vain else ()
        return (*self.log.problems, *self.sent.problems, *vain)

    @property
    def violations(self) -> list[Violation]:
        """Everything that was not allowed, in order of ticks."""
        return sorted([*self.uncertified, *self.sent.violations], key=lambda found: found.tick)

    @property
    def exit_code(self) -> int:
        """The exit code of `metactl replay`."""
        if self.problems:
            return 3
        return 1 if self.again.first_difference or self.violations else 0


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which controller computes the ticks again."""

    name: str
    policy: Policy | None
    controller: ControllerSettings
    recorded: ControllerSettings
    """Of the controller in the bag, which its certificates are checked with."""
    is_open_loop: bool = False


def replay_bag(request: ReplayRequest) -> ReplayResult:
    """Compute a bag again, check it, and return what was found.

    What cannot be used at all is refused by BagError, its policy by BundleError.
    """
    begin_s = time.perf_counter()
    log = read_ticks(request.bag, request.node)
    name = arm_name(request, log)
    arm = load_arm(name)
    prefix = log.joint_names[0].removesuffix(arm.joint_names[0])
    if log.joint_names != tuple(prefix + name for name in arm.joint_names):
        raise BagError(
            f'{request.bag}: is of the joints {shown(log.joint_names)}, expected '
            f'{", ".join(arm.joint_names)} with any prefix, those of the arm {str(name)!r}; give '
            'the recorded one with --arm.'
        )
    chosen = _choose(request, log, arm)
    arm = arm.renamed(log.joint_names)
    _require_gains(request.bag, log, gain_names(chosen.recorded, log.joint_names))
    again = reproduce(log, arm, chosen.controller, chosen.policy, is_open_loop=chosen.is_open_loop)
    elapsed_s = time.perf_counter() - begin_s
    is_guided = guided_ticks(log, chosen.recorded)
    uncertified = check_certificates(log, arm, chosen.recorded)
    sent = check_sent(log, arm, chosen.recorded)
    result = ReplayResult({}, log, again, uncertified, sent)
    facts = {
        'bag': request.bag.name,
        'verdict': verdict(result),
        'exit_code': result.exit_code,
        'partial': list(result.problems),
        'recorded_by': log.facts,
        'computed_by': chosen.name,
        'arm': str(name),
        'ticks': tick_counts(log, again, unverifiable_ticks(log, chosen.recorded), is_guided),
        'commands': {'is_shadow': sent.is_shadow, **sent.counts},
        **_comparison(log, again),
        'violations': {
            'count': len(result.violations),
            'first': [entry._asdict() for entry in result.violations[:20]],
        },
        'recording': {
            'of': who_recorded(log),
            **summarise(log, follows=chosen.recorded.guiding is None),
        },
        'times_real_time': round(float(log.time_s[-1] / elapsed_s), 1),
    }
    return replace(result, facts=_finite(facts))


def arm_name(request: ReplayRequest, log: TickLog) -> Path | str:
    """Return the arm that is asked for, or else the one that the bag names.

    Raises:
        BagError: If that is a file which is not there; a path may be of another machine.
    """
    if request.arm_file is not None:
        return request.arm_file
    name = log.parameter('arm_file') or TWO_LINK
    try:
        if isinstance(name, str) and arm_path(name).is_file():
            return name
    except (ConfigError, OSError, ValueError):  # no name, too long, or with a null byte
        pass
    raise BagError(
        f'{request.bag}: was recorded with the arm {shown(name)}, expected the path of a file '
        'that is here or the name of a shipped arm; give the arm with --arm.'
    )


def _require_gains(bag: Path, log: TickLog, gains: Sequence[str]) -> None:
    """Refuse a log that has other gains, or lacks the condition on one of them."""
    normals = [name for name in log.shield if name.startswith('normal.')]
    has_condition = normals == [f'normal.{name}' for name in gains] and 'constant' in log.shield
    if log.gain_names != tuple(gains) or not has_condition:
        raise BagError(
            f'{bag}: has the gains {shown(log.gain_names)}, expected {shown(gains)}, '
            'and normal.NAME of each in ~/shield; give the controller that was recorded with '
            '--controller-file.'
        )


def verdict(result: ReplayResult) -> str:
    """Return the result in a few words; what is missing comes first."""
    again, num_wrong = result.again, len(result.sent.violations)
    if again.is_open_loop:
        found = 'open loop, compared with nothing'
    elif again.first_difference is not None:
        found = 'differs'
    else:
        found = 'equal' if again.is_compared.any() else 'nothing could be compared'
    if result.uncertified:
        found += f', {len(result.uncertified)} certificates violated'
    if num_wrong:
        found = f'{found.replace("equal", "ticks equal")}, {num_wrong} commands wrong or missing'
    if result.sent.is_shadow:
        found += ', in shadow: no commands were sent'
    return f'partial, {found}' if result.problems else found


def who_recorded(log: TickLog) -> str:
    """Return what a bag says of its controller."""
    return ', '.join(log.facts[k] for k in WHO if k in log.facts) or 'unknown'


def summary(result: ReplayResult) -> list[tuple[str, str]]:
    """Return the lines of a replay."""
    facts, is_open_loop = result.facts, result.again.is_open_loop
    by = 'open loop, what would have commanded' if is_open_loop else 'computed again by'
    rows = [
        ('recorded by', who_recorded(result.log)),
        ('arm', facts['arm']),
        (by, facts['computed_by']),
        *_ticks(facts['ticks']),
        *_differences(result),
        *_commands(result),
        ('certificates violated', str(len(result.uncertified))),
    ]
    rows += [
        (f'  tick {tick}', f'{what}: {found:.6g} > {allowed:.6g}')
        for tick, _, what, found, allowed in result.violations[:5]
    ]
    figures, prefix = facts['recording'], RECORDED if is_open_loop else ''
    rows += [
        (f'{prefix}tracking RMSE, {k}', _rounded('rad', v)) for k, v in figures['rmse_rad'].items()
    ]
    rows += _decisions(prefix, figures)
    if is_open_loop:
        rows.append((f'{WOULD}tracking RMSE', 'not known, its efforts moved nothing'))
        rows += _decisions(WOULD, facts['computed_again'])
    kept = figures['timing']
    late = _rounded('ms', *(kept['lateness_ms'][name] for name in ('p50', 'p99', 'max')))
    rate = f'{_rounded("Hz", kept["rate_hz"])}, {kept["missed_ticks"]}'
    rows += [
        (f'{prefix}rate, missed ticks', rate),
        (f'{prefix}lateness p50, p99, max', late),
        ('speed', f'{facts["times_real_time"]:g} times real time'),
    ]
    return rows


def _ticks(counts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield 'ticks, of these compared', f'{counts["recorded"]}, {counts["compared"]}'
    for why, count in counts['not_compared'].items():
        yield f'  not compared: {why}', str(count)
    for why, count in counts['not_certified'].items():
        if count:
            yield f'  not certified: {why}', str(count)


def _differences(result: ReplayResult) -> Iterator[tuple[str, str]]:
    again = result.again
    if again.is_open_loop:
        yield OPEN_LOOP, f'{result.facts["effort_rms_difference_nm"]:.4g} N m RMS apart'
    elif again.first_difference is not None:
        first = again.first_difference
        where = f'tick {first.tick}, {first.time_s:.2f} s, {first.quantity} {first.joint_or_gain}'
        yield 'first difference', where
        yield 'recorded, computed again', f'{first.recorded!r}, {first.recomputed!r}'
        yield 'largest, of an effort', f'{again.largest_difference_nm:.4g} N m'
    elif again.is_compared.any():
        yield ', '.join(again.quantities), 'equal to the bit'


def _commands(result: ReplayResult) -> Iterator[tuple[str, str]]:
    """Yield how many commands of each topic were compared, and every number that is not zero."""
    for topic, counts in result.sent.counts.items():
        if result.sent.is_shadow:
            yield f'{topic}, in shadow: not judged', f"{counts['recorded']}, somebody else's"
            continue
        others = {k: n for k, n in counts.items() if n and k not in ('recorded', 'compared')}
        yield f'{topic}, of these compared', f'{counts["recorded"]}, {counts["compared"]}'
        for kind, count in others.items():
            yield f'  {kind.replace("_", " ")}', str(count)


def _decisions(prefix: str, figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a controller decided, or would have."""
    shares = (f'{name} {100.0 * share:.1f} %' for name, share in figures['mode_share'].items())
    return [
        *(
            (f'{prefix}effort {k}: RMS, peak', _rounded('N m', v['rms_nm'], v['peak_nm']))
            for k, v in figures['effort'].items()
        ),
        (f'{prefix}moved by the shield', f'{100.0 * figures["shield_activation"]:.1f} %'),
        (f'{prefix}modes', ', '.join(shares)),
    ]


def _rounded(unit: str, *values: float | None) -> str:
    """Return numbers with four digits; none for what was not measured, or is no number."""
    texts = ('none' if value is None else f'{value:.4g}' for value in values)
    return f'{", ".join(texts)} {unit}'


def run_replay(request: ReplayRequest, folder: Path | None) -> int:
    """Replay, write replay.json and replay.html, print a table, and return the exit code."""
    from metactl_ros.replay.page import write_page  # needs matplotlib, as nothing else here does

    result = replay_bag(request)
    name = request.bag.resolve().name
    folder = folder or Path('runs/replay') / name.removesuffix(request.bag.suffix)
    write_json(folder / 'replay.json', result.facts)
    title = legible(f'{name}: {result.facts["verdict"]}')
    rows = [(legible(what), legible(value)) for what, value in summary(result)]
    found = (result.facts, result.log, result.again, result.violations)
    write_page(folder / 'replay.html', title, rows, *found)
    console, table = Console(), Table(title=escape(title))
    table.add_column('')
    table.add_column('', justify='right')
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    for problem in result.problems:
        console.print(f'partial: {escape(legible(problem))}', highlight=False)
    console.print(f'replay.html and replay.json are in {folder}', highlight=False)
    return result.exit_code


def _choose(request: ReplayRequest, log: TickLog, arm: ArmModel) -> _Chosen:
    """Return the controller that is asked for, or else the recorded one."""
    robot = load_controller(arm, request.controller_file)
    recorded_name = log.facts.get('controller')
    recorded = _recorded_controller(request, log, robot)
    own = robot if recorded is None else recorded.applied_to(robot)
    name = request.controller or (recorded_name if request.bundle is None else 'policy')
    if name is None:
        raise BagError(
            f'{request.bag}: does not say which controller it is of; name it with --bundle or '
            '--controller.'
        )
    if name == 'policy':
        return _choose_policy(request, log, arm, robot, own)
    if name not in CONTROLLERS:
        raise BagError(
            f'{request.bag}: is of the controller {shown(name)}, expected policy or one of '
            f'{", ".join(CONTROLLERS)}; replay it with the version that recorded it.'
        )
    if recorded is not None and name == recorded_name and request.classical_file is None:
        return _Chosen(name, ConstantPolicy(np.array(recorded.action)), own, own)
    payload_kg = float(log.shield['payload_estimate_kg'][0])
    controller, policy = load_classical(name, robot, request.classical_file, payload_kg, arm)
    if recorded_name is None:
        return _Chosen(name, policy, controller, controller)
    settings = policy and RecordedController.of(controller, policy.action).to_json()
    is_other = (recorded_name, log.facts.get(SETTINGS)) != (name, settings)
    return _Chosen(name, policy, controller, own, is_open_loop=is_other)


def _choose_policy(
    request: ReplayRequest,
    log: TickLog,
    arm: ArmModel,
    robot: ControllerSettings,
    own: ControllerSettings,
) -> _Chosen:
    recorded, sha256 = log.facts.get('controller'), log.facts.get(SHA)
    path = request.bundle or _recorded_bundle(log, sha256) or shipped_policy()
    bundle = load_learned(path, arm, robot)
    if request.bundle is None and bundle.sha256 != sha256:
        raise BagError(
            f'{request.bag}: was recorded with {log.facts.get("bundle")}, sha256 {sha256}; '
            f'{path.name} has {bundle.sha256}. Give the recorded one with --bundle.'
        )
    is_other = recorded is not None and bundle.sha256 != sha256
    checked = own if is_other else bundle.controller
    name = f'{path.name} {bundle.sha256}'
    return _Chosen(name, bundle.policy, bundle.controller, checked, is_open_loop=is_other)


def _recorded_bundle(log: TickLog, sha256: str | None) -> Path | None:
    """Return where the bundle of a bag is: shipped, or where its node found it; None: nowhere."""
    named = log.parameter('policy')
    candidates = [*shipped_policies()]
    if isinstance(named, str) and named:
        candidates.append(Path(named))
    for path in candidates:
        with suppress(OSError, ValueError):  # it may be of another machine, or no path at all
            if path.is_dir() and sha256_of(path) == sha256:
                return path
    return None


def _recorded_controller(
    request: ReplayRequest, log: TickLog, robot: ControllerSettings
) -> RecordedController | None:
    """Return what the bag says of its controller; None if that has the robot's settings.

    The gain box is not the bag's to choose: it must be one that this robot uses.
    """
    name, recorded = log.facts.get('controller'), None
    if SETTINGS in log.facts and name != 'ct':
        where = f'{request.bag}: ~/bundle: {SETTINGS}'
        recorded = RecordedController.from_json(log.facts[SETTINGS], where)
    if name in CONTROLLERS[1:] and (recorded is None or recorded.action is None):
        raise BagError(
            f'{request.bag}: is of {name}, but ~/bundle does not say with which gains; '
            'record again.'
        )
    is_guided = recorded is not None and recorded.guiding is not None
    if is_guided != (name == GRAVITY_COMPENSATION):
        raise BagError(
            f'{request.bag}: is of {shown(name)}, but ~/bundle says it was '
            f'{"guided by hand" if is_guided else "not guided by hand"}, which only '
            f'{GRAVITY_COMPENSATION} is; record again.'
        )
    if recorded is not None and recorded.gain_box not in gain_boxes(robot):
        raise BagError(
            f'{request.bag}: its gain box, {shown(recorded.gain_box)}, is none of this robot; '
            'give the controller.yaml that was recorded with --controller-file.'
        )
    return recorded


def _comparison(log: TickLog, again: Reproduction) -> dict[str, Any]:
    first = again.first_difference
    apart = again.effort_nm - log.effort_nm
    return {
        'is_open_loop': again.is_open_loop,
        'first_difference': None if first is None else first._asdict(),
        'largest_difference_nm': None if again.is_open_loop else again.largest_difference_nm,
        'effort_rms_difference_nm': float(np.sqrt(np.mean(np.square(apart)))),
        'computed_again': {
            'label': OPEN_LOOP if again.is_open_loop else 'the recorded controller',
            'effort': effort_figures(again.effort_nm, log.joint_names),
            'gains': gain_figures(again.gains, again.gain_names),
            'shield_activation': float(np.mean(again.was_moved)),
            'mode_share': mode_share(again.modes),
        },
    }


def _finite(value: Any) -> Any:
    """Return the same with None for every number that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(_finite, value)]
    return None if isinstance(value, float) and not np.isfinite(value) else value
