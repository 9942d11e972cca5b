# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Behind `metactl replay`: whether a bag can be computed again to the bit, and what is in it.

Exit codes: 0 equal and certified, 1 it differs, a certificate is violated or a command is not the
one decided, 2 it cannot be used, 3 parts of it are missing or nothing could be compared, whatever
else was found.
"""

from collections.abc import Sequence
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
    BASELINES,
    CLASSICAL,
    ClassicalName,
    ConstantPolicy,
    gain_boxes,
    load_classical,
    load_learned,
)
from metactl_ros.check.certificates import (
    check_certificates,
    unverifiable_ticks,
    Violation,
)
from metactl_ros.check.sent_commands import check_sent, SentCheck
from metactl_ros.config import shown
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.errors import legible
from metactl_ros.files import write_json
from metactl_ros.replay.recompute import gain_names, reproduce, Reproduction
from metactl_ros.replay.report import (
    effort_figures,
    gain_figures,
    mode_share,
    OPEN_LOOP,
    summarise,
    summary,
    tick_counts,
    who_recorded,
    write_page,
)
from metactl_ros.settings import load_arm, load_file, shipped_policy
from metactl_ros.signals import Policy

SHA = 'bundle sha256'


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayRequest:
    """Which bag to replay, and with which controller."""

    bag: Path
    bundle: Path | None = None
    """Of a policy; by default the recorded one."""
    controller: ClassicalName | None = None
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

    Raises:
        BagError: If it cannot be used at all.
        BundleError: If the policy cannot.
    """
    begin_s = time.perf_counter()
    log = read_ticks(request.bag, request.node)
    arm = load_arm(request.arm_file)
    prefix = log.joint_names[0].removesuffix(arm.joint_names[0])
    if log.joint_names != tuple(prefix + name for name in arm.joint_names):
        raise BagError(
            f'{request.bag}: is of the joints {shown(log.joint_names)}, expected '
            f'{", ".join(arm.joint_names)} with any prefix; give the arm with --arm-file.'
        )
    chosen = _choose(request, log, arm)
    arm = replace(arm, joint_names=log.joint_names)
    _require_gains(request.bag, log, gain_names(chosen.recorded, log.joint_names))
    again = reproduce(log, arm, chosen.controller, chosen.policy, is_open_loop=chosen.is_open_loop)
    elapsed_s = time.perf_counter() - begin_s
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
        'ticks': tick_counts(log, again, unverifiable_ticks(log, chosen.recorded)),
        'commands': {'is_shadow': sent.is_shadow, **sent.counts},
        **_comparison(log, again),
        'violations': {
            'count': len(result.violations),
            'first': [entry._asdict() for entry in result.violations[:20]],
        },
        'recording': {'of': who_recorded(log), **summarise(log)},
        'times_real_time': round(float(log.time_s[-1] / elapsed_s), 1),
    }
    return replace(result, facts=_finite(facts))


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


def run_replay(request: ReplayRequest, folder: Path | None) -> int:
    """Replay, write replay.json and replay.html, print a table, and return the exit code."""
    result = replay_bag(request)
    name = request.bag.resolve().name
    folder = folder or Path('runs/replay') / name.removesuffix(request.bag.suffix)
    write_json(folder / 'replay.json', result.facts)
    title = legible(f'{name}: {result.facts["verdict"]}')
    rows = [(legible(what), legible(value)) for what, value in summary(result)]
    write_page(
        folder / 'replay.html',
        title,
        rows,
        result.facts,
        result.log,
        result.again,
        result.violations,
    )
    console = Console()
    table = Table(title=escape(title))
    table.add_column('')
    table.add_column('', justify='right')
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    for problem in result.problems:
        console.print(f'partial: {escape(legible(problem))}', highlight=False)
    console.print(f'replay.html and replay.json are in {folder}', highlight=False)
    return result.exit_code


def _choose(request: ReplayRequest, log: TickLog, arm: Arm) -> _Chosen:
    """Return the controller that is asked for, or else the recorded one."""
    robot = load_file(ControllerSettings, request.controller_file, 'controller.yaml')
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
    if name not in CLASSICAL:
        raise BagError(
            f'{request.bag}: is of the controller {shown(name)}, expected policy or one of '
            f'{", ".join(CLASSICAL)}; replay it with the version that recorded it.'
        )
    if recorded is not None and name == recorded_name and request.classical_file is None:
        return _Chosen(name, ConstantPolicy(np.array(recorded.action)), own, own)
    payload_kg = float(log.shield['payload_estimate_kg'][0])
    controller, policy = load_classical(name, robot, request.classical_file, payload_kg)
    if recorded_name is None:
        return _Chosen(name, policy, controller, controller)
    settings = None
    if policy is not None:
        settings = RecordedController.of(controller, policy.action).to_json()
    is_other = (recorded_name, log.facts.get(SETTINGS)) != (name, settings)
    return _Chosen(name, policy, controller, own, is_open_loop=is_other)


def _choose_policy(
    request: ReplayRequest,
    log: TickLog,
    arm: Arm,
    robot: ControllerSettings,
    own: ControllerSettings,
) -> _Chosen:
    recorded, sha256 = log.facts.get('controller'), log.facts.get(SHA)
    path = request.bundle or shipped_policy()
    bundle = load_learned(path, arm, robot)
    if request.bundle is None and bundle.sha256 != sha256:
        raise BagError(
            f'{request.bag}: was recorded with {log.facts.get("bundle")}, sha256 {sha256}; '
            f'{path.name} has {bundle.sha256}. Give the recorded one with --bundle.'
        )
    is_other = recorded is not None and bundle.sha256 != sha256
    checked = bundle.controller if recorded is None else own
    return _Chosen(
        f'{path.name} {bundle.sha256}',
        bundle.policy,
        bundle.controller,
        checked,
        is_open_loop=is_other,
    )


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
    if name in BASELINES and (recorded is None or recorded.action is None):
        raise BagError(
            f'{request.bag}: is of {name}, but ~/bundle does not say with which gains; '
            'record again.'
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
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
