# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/topics_and_parameters.md.

    python test/topics_page.py > docs/topics_and_parameters.md

Parameters and faults come from the tables the nodes are built from, codes from their enums. Topics
and services, and the parameters of the recorder, are written here: tests compare them with what
running nodes have.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
import sys

from metactl_ros.bag.topics import SHIELD_NAMES
from metactl_ros.bag.topics import TOPICS as RECORDED
from metactl_ros.control.modes import Cause, Mode
from metactl_ros.control.shield import Reason
from metactl_ros.options import (
    CONTROLLER_PARAMETERS,
    defaults_of,
    FAULT_PARAMETERS,
    Parameter,
    PLANT_PARAMETERS,
)
from metactl_ros.sim.faults import Kind, KINDS


def switch_text(kind: Kind) -> str:
    """Return what switching a fault on does."""
    return kind.meaning + (' (in real time only)' if kind.needs_real_time else '')


TOPICS = {
    'controller': (
        (
            'in',
            'joint_states',
            'sensor_msgs/JointState',
            'best effort; matched by name, stamped; of one publisher only',
        ),
        (
            'in',
            '~/joint_trajectory',
            'trajectory_msgs/JointTrajectory',
            'if reference: trajectory; refused, with a word in the log, if a joint would leave '
            'its limits on the way, beyond 2,000 points, beyond 10,000 of them a second, in '
            'STOP, BLIND or FAULT, and by gravity_compensation; empty: hold',
        ),
        ('in', '~/payload', 'std_msgs/Float64', 'payload estimate, kg'),
        (
            'out',
            'joint_commands',
            'sensor_msgs/JointState',
            'names and efforts, N m, stamped; not if shadow',
        ),
        (
            'out',
            'forward_effort_controller/commands',
            'std_msgs/Float64MultiArray',
            'the same for ros2_control, in the order of the joints; not if shadow',
        ),
        (
            'out',
            'stop_request',
            'std_msgs/Bool',
            'true: the robot should brake; in FAULT, in BLIND once the torque has faded, and '
            'after an error or a hang; on change, latched; not if shadow',
        ),
        (
            'out',
            '~/reference',
            'trajectory_msgs/JointTrajectory',
            'q_d, qd_d, qdd_d: a point for each state that came since the last tick, oldest '
            'first, the last in force; one if none came',
        ),
        (
            'out',
            '~/feedback',
            'sensor_msgs/JointState',
            'as many messages: those states, the last acted upon; effort: of the tick before',
        ),
        ('out', '~/error', 'sensor_msgs/JointState', 'q_d - q and qd_d - qd'),
        ('out', '~/output', 'sensor_msgs/JointState', 'effort: decided; velocity: before limits'),
        ('out', '~/gains', 'sensor_msgs/JointState', 'position: gains; velocity: the proposal'),
        ('out', '~/shield', 'sensor_msgs/JointState', 'position: the values named below'),
        (
            'out',
            '~/bundle',
            'std_msgs/String',
            'JSON: controller, bundle and its SHA-256, settings of a rival, parameters; latched',
        ),
        (
            'out',
            '/diagnostics',
            'diagnostic_msgs/DiagnosticArray',
            'mode and why, timing, inputs, sources; 1 Hz',
        ),
        ('service', '~/enable', 'std_srvs/SetBool', 'false holds the arm where it is'),
        ('service', '~/reset_fault', 'std_srvs/Trigger', 'leave FAULT, if all is well'),
        (
            'service',
            '~/clear_context',
            'std_srvs/Trigger',
            'empty the window, warm up again; once a second, not in STOP, BLIND or FAULT',
        ),
    ),
    'plant': (
        (
            'in',
            'joint_commands',
            'sensor_msgs/JointState',
            'names and efforts, N m; followed within the limit of their rate',
        ),
        (
            'in',
            'stop_request',
            'std_msgs/Bool',
            'latched; true: brake, until it is false again and a command came after that',
        ),
        ('out', 'joint_states', 'sensor_msgs/JointState', 'as the sensors see it; effort: given'),
        ('out', '~/truth', 'sensor_msgs/JointState', 'the true state; effort: the memory z'),
        ('out', '~/braking', 'std_msgs/Bool', 'on change, latched'),
        (
            'out',
            '~/faults',
            'sensor_msgs/JointState',
            'faults that are on, position: their amounts; on change, latched',
        ),
        ('out', '/clock', 'rosgraph_msgs/Clock', 'in lockstep'),
        ('out', '/diagnostics', 'diagnostic_msgs/DiagnosticArray', '1 Hz'),
        ('service', '~/reset', 'std_srvs/Trigger', 'begin the episode again'),
        *(
            ('service', f'~/fault/{name}', 'std_srvs/SetBool', switch_text(kind))
            for name, kind in KINDS.items()
        ),
    ),
}
PARAMETERS: dict[str, tuple[Mapping[str, Parameter], str]] = {
    'controller': (CONTROLLER_PARAMETERS, 'controller_node.yaml'),
    'plant': (PLANT_PARAMETERS | FAULT_PARAMETERS, 'plant_node.yaml'),
}
RECORDER = {
    'out': Parameter(
        'folder of the bag, which must not exist; without it nothing starts', default=''
    ),
    'topics': Parameter(
        'what is recorded, NAME or NAME=TYPE; the type is needed of all but these',
        default=list(RECORDED),
    ),
}
CODES: dict[str, type[IntEnum]] = {'mode': Mode, 'reason': Reason, 'error': Cause, 'cause': Cause}
"""What the numbers of a value of ~/shield mean."""
NOTES = {
    'controller': (
        'It is a lifecycle node, with the usual services of one. What it hears of',
        '`joint_states` and publishes belongs to a second node, NAME_loop, in a process that',
        'answers nobody, so that no request can hold up a tick. A latched FAULT is left by',
        '`~/reset_fault`, or by deactivating and activating the node again, which an operator',
        'must ask for. The services wait up to 0.5 s for the tick that takes a request, and',
        'succeed only if it helped; else they say why not, and what to do. It is not activated',
        'beside another publisher of its commands, or of `joint_states`; one that appears is a',
        'FAULT.',
        '',
        'The robot must have a watchdog of its own that brakes when commands stay away, as the',
        'simulated one does after `command_timeout_s`: a process that stands still, or is killed,',
        'can say nothing. It should brake while `stop_request` is true: zero torque lets an arm',
        'fall.',
        '',
        'Stamps of joint states must keep pace with time. A clock may be off by any amount, be',
        'set now and then, and drift by 5 %; one that does not fit ends in FAULT. Who slews',
        'clocks faster, as chrony may by 8 %, should limit that (`maxslewrate`).',
    ),
}


def page() -> str:
    """Return the page."""
    lines = [
        '# Topics and parameters',
        '',
        'Generated: `python test/topics_page.py`. Names are relative; `~/` stands',
        'for the node. Units are SI. This is not a safety-rated function.',
    ]
    for node, (meanings, file) in PARAMETERS.items():
        lines += ['', f'## {node}', '']
        lines += table(('', 'name', 'type', 'what'), TOPICS[node])
        lines += ['', *NOTES[node]] if node in NOTES else []
        lines += [
            '',
            f'Defaults are in `config/{file}`; a read-only parameter is set at start.',
            '',
        ]
        lines += table(
            ('parameter', 'default', 'range', 'read-only', 'what'),
            [
                parameter_row(name, meaning, defaults_of(file).get(name, meaning.default))
                for name, meaning in meanings.items()
            ],
        )
    lines += ['', '## recorder', '', 'Both are read once, at start.', '']
    lines += table(
        ('parameter', 'default', 'what'),
        [(f'`{n}`', f'`{m.default!r}`', m.description) for n, m in RECORDER.items()],
    )
    lines += ['', '## The values of ~/shield', '']
    lines += [f'- `{name}`{codes(name)}' for name in SHIELD_NAMES]
    lines += [
        '- `normal.GAIN` for each gain, and `constant`: normal . theta + constant <= 0 was asked',
        '- `estimate.JOINT` for each joint, if the controller has an estimator: N m',
        '- `estimated_q_rad.JOINT`, `estimated_qd_radps.JOINT` and `estimated_payload_kg`, if it '
        'acts on an estimated state',
    ]
    return '\n'.join(lines) + '\n'


def codes(name: str) -> str:
    """Return what the numbers of a value of ~/shield mean; nothing if they are no codes."""
    meanings = ', '.join(f'{code.value} {code.name}' for code in CODES.get(name, ()))
    return f': {meanings}' if meanings else ''


def parameter_row(name: str, meaning: Parameter, default: object) -> tuple[str, ...]:
    """Return the cells of a parameter."""
    ends = meaning.bounds
    bounds = '' if ends is None else f'{ends[0]:g} to {ends[1]:g}'
    fixed = 'yes' if meaning.is_fixed else 'no'
    return f'`{name}`', f'`{default!r}`', bounds, fixed, meaning.description


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown."""
    cells = [headings, ['---'] * len(headings), *rows]
    return [f'| {" | ".join(row)} |' for row in cells]


if __name__ == '__main__':
    sys.stdout.write(page())
