# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The topics that are recorded: their messages, how these are defined and read, what some hold.

A bag carries the .msg texts of its messages, so that it can be read without ROS. Every message
package installs `share/<package>/msg/<Type>.msg` and, next to it, a .json that names all types the
message is made of and their hashes. This holds for the wheels, apt and colcon.

The messages of a tick are read from CDR here, several times as fast as by a general deserialiser:
they are five of the same joints and names, of which only the numbers change. Names that came
before are known by their bytes and not read again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from importlib.util import find_spec
import json
from pathlib import Path
import struct
from typing import Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from metactl_ros.config import build, LATER, stated
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.gain_map import GainBox
from metactl_ros.control.guiding import GuidingSettings
from metactl_ros.control.lyapunov import LyapunovSettings
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.control.window import ContextSettings
from metactl_ros.errors import ConfigError, MissingDependency
from metactl_ros.signals import Array, NANOSECONDS_PER_SECOND

JOINT_STATE = 'sensor_msgs/msg/JointState'
STAMPED = 'joint_commands'
"""The commands, with stamp and names."""
FORWARD = 'forward_effort_controller/commands'
"""The same as a robot of ros2_control applies them, without a stamp."""
TOPICS = {
    'joint_states': JOINT_STATE,
    STAMPED: JOINT_STATE,
    FORWARD: 'std_msgs/msg/Float64MultiArray',
    'stop_request': 'std_msgs/msg/Bool',
    'controller/reference': 'trajectory_msgs/msg/JointTrajectory',
    'controller/feedback': JOINT_STATE,
    'controller/error': JOINT_STATE,
    'controller/output': JOINT_STATE,
    'controller/gains': JOINT_STATE,
    'controller/shield': JOINT_STATE,
    'controller/bundle': 'std_msgs/msg/String',
    'controller/transition_event': 'lifecycle_msgs/msg/TransitionEvent',
    'plant/truth': JOINT_STATE,
    'plant/faults': JOINT_STATE,
    'plant/braking': 'std_msgs/msg/Bool',
    '/diagnostics': 'diagnostic_msgs/msg/DiagnosticArray',
    '/clock': 'rosgraph_msgs/msg/Clock',
    '/parameter_events': 'rcl_interfaces/msg/ParameterEvent',
}
"""What is recorded unless the parameter `topics` says otherwise; others need `name=type` there."""
SHARED_TOPICS = ('/diagnostics', '/clock', '/parameter_events')
"""Every node of the network may publish here: a bag of these alone is of no robot."""
LATCHED = (
    *('stop_request', 'plant/faults', 'plant/braking', 'controller/bundle'),
    *('controller/reference', 'controller/feedback', 'controller/error', 'controller/output'),
    *('controller/gains', 'controller/shield'),
)
"""Kept by the publisher for late subscribers: a bag has the first tick, however early it came."""
SHIELD_NAMES = (
    *('mode', 'reason', 'was_moved', 'is_feasible', 'distance', 'excess', 'excess_after_limits'),
    *('lyapunov_value', 'state_is_fresh', 'reference_is_valid', 'policy_is_on_time', 'error'),
    *('reset_requested', 'payload_estimate_kg', 'was_restarted', 'num_states', 'now_s', 'late_ms'),
    *('inference_ms', 'state_stamp_sec', 'state_stamp_nanosec', 'cause', 'cause_joint'),
    'was_resumed',
)
"""Then follow normal.NAME for each gain and constant: normal . theta + constant <= 0 was asked;
then, of a controller with an estimator, estimate.JOINT for each joint, N m; and of one that acts
on an estimated state `STATE_NAMES` for each joint, and the payload of its model, kg.

distance is -1 where the proposal was replaced; mode is a `Mode`, error and cause are a `Cause`,
reason is a `Reason`; cause_joint counts from 0, -1 is none in particular.
"""
STATE_NAMES = ('estimated_q_rad', 'estimated_qd_radps')
ESTIMATED_PAYLOAD = 'estimated_payload_kg'
SETTINGS = 'settings'
"""The key of a `RecordedController` in the table of ~/bundle."""
SEPARATOR = '=' * 80
HEADER = 4
"""Bytes of CDR before the content, from which alignment counts."""
LITTLE_ENDIAN = b'\0\1'
FRAME = HEADER + 8
"""Where the frame begins, after the stamp."""
MAX_KNOWN = 64
_KNOWN: dict[int, tuple[bytes, int]] = {}
"""Frame and names by the length of a message, and where they end."""
_P = ParamSpec('_P')
_T = TypeVar('_T')


class MessageDefinition(NamedTuple):
    """A message type as a bag describes it."""

    type_name: str
    """Such as sensor_msgs/msg/JointState."""
    text: str
    """The .msg file, followed by those of all types it is made of."""
    type_hash: str
    """RIHS01, as ROS computes it."""


def parse_topics(entries: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names and types of entries `name` (of TOPICS) or `name=type`, each there once."""
    parsed: dict[str, str] = {}
    for entry in entries:
        name, _, type_name = entry.partition('=')
        type_name = type_name or TOPICS.get(name, '')
        if not type_name:
            raise ConfigError(
                f'topics: {entry!r} needs its type, as in {name}=std_msgs/msg/String; without it '
                f'go {", ".join(TOPICS)}.'
            )
        if name in parsed:
            raise ConfigError(f'topics: {name!r} is there twice; name it once.')
        parsed[name] = type_name
    if not parsed:
        raise ConfigError('topics: names none; leave it out to record the usual ones.')
    return list(parsed.items())


def load_definition(type_name: str) -> MessageDefinition:
    """Return the definition of an installed message type, such as sensor_msgs/msg/JointState."""
    source = _definition_file(type_name)
    description = json.loads(source.with_suffix('.json').read_text(encoding='utf-8'))
    texts = [source.read_text(encoding='utf-8')]
    for part in description['type_description_msg']['referenced_type_descriptions']:
        package, _, name = part['type_name'].split('/')
        texts.append(f'{SEPARATOR}\nMSG: {package}/{name}\n')
        texts[-1] += _definition_file(part['type_name']).read_text(encoding='utf-8')
    hashes = {row['type_name']: row['hash_string'] for row in description['type_hashes']}
    return MessageDefinition(type_name, '\n'.join(texts), hashes[type_name])


def _definition_file(type_name: str) -> Path:
    parts = type_name.split('/')
    if len(parts) != 3 or parts[1] != 'msg' or not all(map(str.isidentifier, parts)):
        raise ConfigError(
            f'message type {type_name!r}: expected package/msg/Type, such as '
            'sensor_msgs/msg/JointState.'
        )
    package, _, name = parts
    if (spec := find_spec(package)) is not None and spec.origin is not None:
        # lib/python3.x/site-packages/<package> and share/<package> have one prefix in common.
        for prefix in Path(spec.origin).parents:
            if (path := prefix / 'share' / package / 'msg' / f'{name}.msg').is_file():
                return path
    raise MissingDependency(
        f'message type {type_name!r}: not installed; install its package with pip install '
        f'ros-jazzy-{package.replace("_", "-")}, or source the workspace that has it.'
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedController:
    """What of a controller is not in the robot's `controller.yaml`, as ~/bundle carries it.

    Gains and estimator of a baseline come from a file that may be another one when its bag is
    replayed. So the node publishes them as JSON, which keeps every bit of a number.
    """

    gain_box: GainBox
    estimator: EstimatorSettings | None = None
    lyapunov: LyapunovSettings | None = field(default=None, metadata=LATER)
    """Of a controller with an estimator: alpha and P, and the rho that was certified."""
    context: ContextSettings | None = field(default=None, metadata=LATER)
    """Of a policy that schedules such a bank."""
    guiding: GuidingSettings | None = field(default=None, metadata=LATER)
    """Of gravity_compensation."""
    action: tuple[float, ...] | None = None
    """What a constant policy proposes, shape (m,); None if it depends on the window."""

    def __post_init__(self) -> None:
        kinds = len(self.gain_box.named_ends())
        if self.action is not None and (not self.action or len(self.action) % kinds):
            raise ConfigError(
                f'RecordedController.action: expected {kinds} entries per joint, one per gain, '
                f'found {len(self.action)}.'
            )

    @classmethod
    def of(cls, controller: ControllerSettings, action: Array | None) -> Self:
        """Return what is recorded of a controller, and of the action of a constant policy."""
        return cls(
            gain_box=controller.gain_box,
            estimator=controller.estimator,
            lyapunov=controller.lyapunov if controller.estimator else None,
            context=controller.context if controller.payload_max_kg else None,
            guiding=controller.guiding,
            action=None if action is None else tuple(action.tolist()),
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """Return what `to_json` wrote; of anything else, `where` begins the refusal."""
        try:
            return build(cls, json.loads(text), where)
        except (ValueError, RecursionError) as error:  # not JSON, other settings, nested forever
            raise ConfigError(f'{where}: cannot be read ({error}); record again.') from None

    def to_json(self) -> str:
        """Return the text that ~/bundle carries."""
        return json.dumps(stated(self))

    def applied_to(self, robot: ControllerSettings) -> ControllerSettings:
        """Return the settings of the controller on a robot."""
        lyapunov = robot.lyapunov
        if self.lyapunov is not None:  # never a slower decay than the robot asks for
            alpha_per_s = max(lyapunov.alpha_per_s, self.lyapunov.alpha_per_s)
            lyapunov = replace(self.lyapunov, alpha_per_s=alpha_per_s)
        return replace(
            robot,
            gain_box=self.gain_box,
            estimator=self.estimator,
            lyapunov=lyapunov,
            context=self.context or robot.context,
            guiding=self.guiding,
        )


class CdrError(ValueError):
    """The bytes are no such message, or not little-endian."""


class JointValues(NamedTuple):
    """A JointState."""

    stamp_ns: int
    names: tuple[str, ...]
    position: tuple[float, ...]
    velocity: tuple[float, ...]
    effort: tuple[float, ...]


class Point(NamedTuple):
    """A JointTrajectoryPoint."""

    positions: tuple[float, ...]
    velocities: tuple[float, ...]
    accelerations: tuple[float, ...]
    time_ns: int


class Trajectory(NamedTuple):
    """A JointTrajectory."""

    stamp_ns: int
    names: tuple[str, ...]
    points: tuple[Point, ...]


_Read = Callable[Concatenate[bytes, _P], _T]


def _reader_of(type_name: str) -> Callable[[_Read[_P, _T]], _Read[_P, _T]]:
    """Let a function read little-endian bytes only, and raise nothing but CdrError."""

    def decorate(read: _Read[_P, _T]) -> _Read[_P, _T]:
        @wraps(read)
        def reader(data: bytes, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                if data[:2] != LITTLE_ENDIAN:
                    raise ValueError(f'expected little-endian CDR, found {data[:2]!r}')
                return read(data, *args, **kwargs)
            except (struct.error, ValueError, OverflowError, MemoryError) as error:
                raise CdrError(f'not a {type_name}: {error}') from None

        return reader

    return decorate


@_reader_of('JointState')
def read_joint_state(data: bytes) -> JointValues:
    """Return a sensor_msgs/msg/JointState."""
    stamp_ns, names, place = _read_head(data)
    position, place = _read_doubles(data, place)
    velocity, place = _read_doubles(data, place)
    effort, _ = _read_doubles(data, place)
    return JointValues(stamp_ns, names, position, velocity, effort)


@_reader_of('JointTrajectory')
def read_trajectory(data: bytes) -> Trajectory:
    """Return a trajectory_msgs/msg/JointTrajectory."""
    points = []
    stamp_ns, names, place = _read_head(data)
    place = _aligned(place, 4)
    (count,) = struct.unpack_from('<I', data, place)
    place += 4
    for _ in range(count):
        positions, place = _read_doubles(data, place)
        velocities, place = _read_doubles(data, place)
        accelerations, place = _read_doubles(data, place)
        _, place = _read_doubles(data, place)
        place = _aligned(place, 4)
        seconds, rest = struct.unpack_from('<iI', data, place)
        place += 8
        time_ns = seconds * NANOSECONDS_PER_SECOND + rest
        points.append(Point(positions, velocities, accelerations, time_ns))
    return Trajectory(stamp_ns, names, tuple(points))


@_reader_of('JointTrajectory')
def count_trajectory(data: bytes, most_names: int) -> tuple[int, int]:
    """Return how many names and points a JointTrajectory has, without reading the points.

    They come after the names: behind more names than expected none are looked for.
    """
    (frame,) = struct.unpack_from('<I', data, FRAME)
    place = _aligned(FRAME + 4 + frame, 4)
    (num_names,) = struct.unpack_from('<I', data, place)
    if num_names > most_names:
        return num_names, 0
    (num_points,) = struct.unpack_from('<I', data, _aligned(_after_names(data, place), 4))
    return num_names, num_points


@_reader_of('String')
def read_string(data: bytes) -> str:
    """Return the text of a std_msgs/msg/String."""
    return _read_text(data, HEADER)[0]


@_reader_of('Float64MultiArray')
def read_multi_array(data: bytes) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the labels of the dimensions and the data of a std_msgs/msg/Float64MultiArray."""
    labels = []
    (count,) = struct.unpack_from('<I', data, HEADER)
    place = HEADER + 4
    for _ in range(count):  # ends with the data, however many are promised
        label, place = _read_text(data, place)
        labels.append(label)
        place += 8  # size and stride
    values, _ = _read_doubles(data, place + 4)  # after the offset
    return tuple(labels), values


def _read_head(data: bytes) -> tuple[int, tuple[str, ...], int]:
    """Return stamp, names, and where the rest begins."""
    seconds, rest, frame = struct.unpack_from('<iII', data, HEADER)
    block, place = _KNOWN.get(len(data), (b'', 0))
    if not place or data[FRAME:place] != block:
        place = _after_names(data, _aligned(FRAME + 4 + frame, 4))
        block = bytes(data[FRAME:place])
        if len(_KNOWN) < MAX_KNOWN:
            _KNOWN[len(data)] = block, place
    return seconds * NANOSECONDS_PER_SECOND + rest, _names(block), place


def _after_names(data: bytes, place: int) -> int:
    (count,) = struct.unpack_from('<I', data, place)
    place += 4
    for _ in range(count):
        (size,) = struct.unpack_from('<I', data, place)
        place = _aligned(place + 4 + size, 4)
    return place


@lru_cache(maxsize=MAX_KNOWN)
def _names(block: bytes) -> tuple[str, ...]:
    """Return the names of a block that begins with the frame."""
    (frame,) = struct.unpack_from('<I', block)
    place = _aligned(4 + frame, 4)
    (count,) = struct.unpack_from('<I', block, place)
    names, place = [], place + 4
    for _ in range(count):
        name, place = _read_text(block, place)
        names.append(name)
    return tuple(names)


def _read_text(data: bytes, place: int) -> tuple[str, int]:
    """Return a text, and where what follows it begins."""
    (size,) = struct.unpack_from('<I', data, place)
    (text,) = struct.unpack_from(f'<{size}s', data, place + 4)
    return str(text[:-1], 'utf-8'), _aligned(place + 4 + size, 4)


def _read_doubles(data: bytes, place: int) -> tuple[tuple[float, ...], int]:
    place = _aligned(place, 4)
    (count,) = struct.unpack_from('<I', data, place)
    place += 4
    if not count:
        return (), place
    place = _aligned(place, 8)
    return struct.unpack_from(f'<{count}d', data, place), place + 8 * count


def _aligned(place: int, size: int) -> int:
    return HEADER + -(-(place - HEADER) // size) * size
