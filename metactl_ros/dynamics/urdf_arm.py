# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What an arm file and its URDF state of an arm, checked before anything is computed from them.

    URDF:      links with masses and inertias, joints with axes and limits
    arm file:  which joints are controlled, in which order; where the others are locked; what no
               URDF has (rotor inertia, how fast an effort may change); where a payload is held

Whatever a rigid-body library would pass over in silence is refused here, all of it at once: a link
without mass, a joint that follows another, an effort limit of zero. See `config/arms/`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
import difflib
import math
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable
from xml.etree import ElementTree

import numpy as np

from metactl_ros.config import require_length, require_not_negative, shown
from metactl_ros.dynamics.reduced_arm import ReducedArm
from metactl_ros.dynamics.rigid_body import ArmModel, JointLimits
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

KINDS = ('revolute', 'continuous', 'prismatic', 'fixed')
"""Of joints; those that move in more than one direction are refused."""
TURNING = ('revolute', 'continuous')
POSITION_KEYS = ('lower', 'upper')
IGNORED = ('visual', 'collision', 'transmission', 'gazebo', 'ros2_control', 'material', 'sensor')
"""Elements that say nothing of masses and joints; meshes need not be there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedJoint:
    """A joint of the URDF that is not controlled, and where it stays."""

    joint: str
    position: float
    """rad, or m of one that slides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedLimits:
    """Limits of the arm file, one entry per joint; null: as in the URDF."""

    effort_rate_nmps: tuple[float, ...]
    """Fastest change of joint torque, N m / s; no URDF has it."""
    effort_nm: tuple[float, ...] | None = None
    """Largest joint torque, N m."""
    velocity_radps: tuple[float, ...] | None = None
    """Fastest joint motion, rad / s."""
    position_rad: tuple[float, ...] | None = None
    """Upper end of the joint range, rad; without a lower one the range is symmetric about zero."""
    position_lower_rad: tuple[float, ...] | None = None
    """Lower end of the joint range, rad; only together with the upper one."""

    def __post_init__(self) -> None:
        if self.position_rad is None and self.position_lower_rad is not None:
            raise ConfigError(
                'StatedLimits.position_lower_rad: expected position_rad beside it, found none; '
                'state both ends of the range, or neither.'
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmFile:
    """An arm that is described by a URDF, as a file of `config/arms/` states it."""

    urdf: str
    """Path of the URDF, from the folder of the arm file."""
    joints: tuple[str, ...]
    """The joints that are controlled, from the base to the tip; the order of every joint axis."""
    payload_frame: str
    """The link that holds the payload, a point mass."""
    gravity_mps2: tuple[float, ...]
    """Gravity in the frame of the base, m / s^2: how the arm is mounted."""
    limits: StatedLimits
    rated_payload_kg: float
    """The heaviest payload, which gains must hold although the model has none."""
    rotor_inertia_kgm2: tuple[float, ...] = ()
    """What a joint feels of its rotor, rotor inertia times gear ratio squared, kg m^2; one entry
    per joint. It must be stated: only so can the error say why."""
    payload_offset_m: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Where in the payload frame the point mass is, m."""
    locked: tuple[LockedJoint, ...] = ()
    """All other joints of the URDF that could move."""

    def __post_init__(self) -> None:
        if not self.joints:
            raise ConfigError('ArmFile.joints: expected the names of joints, found none.')
        names = [*self.joints, *(entry.joint for entry in self.locked)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f'ArmFile.joints: {shown(twice)} stands twice in joints and locked; keep one.'
            )
        if not self.rotor_inertia_kgm2:
            raise ConfigError(
                'ArmFile.rotor_inertia_kgm2: missing, and no URDF has it; add rotor inertia times '
                'gear ratio squared of each joint, kg m^2. Zeros are allowed, but a geared wrist '
                'is then far too light in the model, and tracks badly or chatters.'
            )
        require_length('ArmFile', len(self.joints), rotor_inertia_kgm2=self.rotor_inertia_kgm2)
        require_not_negative('ArmFile', rotor_inertia_kgm2=self.rotor_inertia_kgm2)
        require_not_negative('ArmFile', rated_payload_kg=self.rated_payload_kg)
        _require_vector('gravity_mps2', self.gravity_mps2, 'm/s^2', 100.0)
        _require_vector('payload_offset_m', self.payload_offset_m, 'm', 10.0)


class CheckedArm(NamedTuple):
    """An arm of which file and URDF fit together."""

    file: ArmFile
    limits: JointLimits
    urdf: str
    """The URDF without geometry; every joint that moves is one of range, none follows another."""
    where: str
    """The file, for further errors."""
    path: Path = Path()
    """Of the arm file, if it is from one."""


@runtime_checkable
class FromUrdf(ArmModel, Protocol):
    """An arm that a URDF describes, whoever computes it."""

    @property
    def checked(self) -> CheckedArm:
        """Its file and URDF."""

    @property
    def postures(self) -> Array:
        """All over the joint ranges, and where the arm feels lightest, rad, shape (S, n)."""

    def reduced(self) -> ReducedArm:
        """Return what decides how it moves, whatever its file looks like."""

    def simulated(self, link_mass_factor: float = 1.0) -> 'Accelerated':
        """Return its rigid body for a simulation, the links heavier by a factor."""


class Accelerated(Protocol):
    """A rigid body that is driven by torques."""

    def accelerate(
        self, q_rad: Array, qd_radps: Array, torque_nm: Array, added_kgm2: Array, payload_kg: float
    ) -> Array:
        """Return (M(q) + diag(added))^-1 (tau - C qd - g) of one arm, rad / s^2, shape (n,)."""


def check_arm(arm: ArmFile, urdf: str, where: str) -> CheckedArm:
    """Return an arm whose file and URDF fit together.

    Args:
        arm: What the arm file states.
        urdf: The text of the URDF.
        where: The name of the URDF, for errors.

    Raises:
        ConfigError: With one line per problem: where, what was expected, found, and what to do.
    """
    root = _parse(urdf, where)
    joints = {joint.name: joint for joint in _joints(root, where)}
    links = _link_masses(root, where)
    _refuse(_tree_problems(joints, links, where))
    _refuse(_joint_problems(arm, joints, where))
    _refuse(
        [
            *_chain_problems(arm, joints, links, where),
            *_limit_problems(arm, joints, where),
            *_mass_problems(arm, joints, links, where),
        ]
    )
    try:
        limits = _limits(arm, joints)
    except ConfigError as error:
        raise ConfigError(f'{where}: {error}') from None
    return CheckedArm(arm, limits, _plain_text(root), where)


class _Joint(NamedTuple):
    """A joint of a URDF."""

    name: str
    kind: str
    parent: str
    child: str
    limit: Mapping[str, float]
    """What <limit> states, by the name of its attribute."""
    follows: str | None
    """The joint that it follows, of <mimic>."""


def _require_vector(name: str, value: tuple[float, ...], unit: str, largest: float) -> None:
    if len(value) != 3 or not all(abs(x) <= largest for x in value):
        raise ConfigError(
            f'ArmFile.{name}: expected x, y and z, each at most {largest:g} {unit}, found '
            f'{shown(list(value))}.'
        )


def _refuse(problems: Iterable[str]) -> None:
    if lines := list(problems):
        raise ConfigError('\n'.join(lines))


def _parse(urdf: str, where: str) -> ElementTree.Element:
    if '<!DOCTYPE' in urdf or '<!ENTITY' in urdf:
        raise ConfigError(f'{where}: found a DOCTYPE, which a URDF has no use for; remove it.')
    try:
        root = ElementTree.fromstring(urdf.encode())
    except ElementTree.ParseError as error:
        raise ConfigError(f'{where}: is not valid XML ({error}); give a URDF.') from None
    if root.tag != 'robot':
        raise ConfigError(f'{where}: expected <robot>, found <{shown(root.tag)}>; give a URDF.')
    if any('xacro' in element.tag for element in root.iter() if isinstance(element.tag, str)):
        raise ConfigError(f'{where}: has macros; expand them first: xacro ARM.xacro > ARM.urdf.')
    return root


def _joints(root: ElementTree.Element, where: str) -> Iterator[_Joint]:
    seen: set[str] = set()
    for element in root.findall('joint'):
        name, kind = element.get('name', ''), element.get('type', '')
        at = f'{where}: joint {shown(name)}'
        if not name or name in seen:
            raise ConfigError(f'{at}: expected a name that no other joint has; rename it.')
        seen.add(name)
        if kind not in KINDS:
            raise ConfigError(
                f'{at}: expected one of the types {list(KINDS)}, found {shown(kind)}; an arm on '
                'a base that moves freely is not supported.'
            )
        limit, mimic = element.find('limit'), element.find('mimic')
        stated = {} if limit is None else {key: _number(limit, key, at) for key in limit.attrib}
        for tag, attribute in (('origin', 'xyz'), ('origin', 'rpy'), ('axis', 'xyz')):
            _vector(element.find(tag), attribute, at)
        yield _Joint(
            name,
            kind,
            _link_of(element, 'parent', at),
            _link_of(element, 'child', at),
            stated,
            None if mimic is None else mimic.get('joint', ''),
        )


def _link_of(element: ElementTree.Element, tag: str, at: str) -> str:
    found = element.find(tag)
    if found is None or not found.get('link'):
        raise ConfigError(f'{at}: expected <{tag} link="..."/>, found none; add it.')
    return found.get('link', '')


def _number(element: ElementTree.Element, attribute: str, at: str) -> float:
    text = element.get(attribute, '')
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(
            f'{at}: {element.tag} {attribute}: expected a finite number, found {shown(text)}.'
        )
    return value


def _vector(element: ElementTree.Element | None, attribute: str, at: str) -> None:
    if element is None or attribute not in element.attrib:
        return
    text = element.get(attribute, '')
    try:
        values = [float(word) for word in text.split()]
    except ValueError:
        values = []
    if len(values) != 3 or not all(map(math.isfinite, values)):
        raise ConfigError(
            f'{at}: {element.tag} {attribute}: expected three finite numbers, found {shown(text)}.'
        )


def _link_masses(root: ElementTree.Element, where: str) -> dict[str, float]:
    """Return the mass of each link, kg; zero if it has none."""
    masses: dict[str, float] = {}
    for element in root.findall('link'):
        name = element.get('name', '')
        at = f'{where}: link {shown(name)}'
        if not name or name in masses:
            raise ConfigError(f'{at}: expected a name that no other link has; rename it.')
        inertial = element.find('inertial')
        masses[name] = 0.0 if inertial is None else _mass(inertial, at)
    return masses


def _mass(inertial: ElementTree.Element, at: str) -> float:
    mass, inertia = inertial.find('mass'), inertial.find('inertia')
    if mass is None or inertia is None:
        raise ConfigError(f'{at}: expected mass and inertia in <inertial>; add what is missing.')
    for attribute in ('xyz', 'rpy'):
        _vector(inertial.find('origin'), attribute, at)
    xx, xy, xz, yy, yz, zz = (
        _number(inertia, key, at) for key in ('ixx', 'ixy', 'ixz', 'iyy', 'iyz', 'izz')
    )
    moments = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    kg = _number(mass, 'value', at)
    if kg < 0.0 or moments[0] < -1e-9 * max(moments[-1], 1e-9):
        raise ConfigError(
            f'{at}: expected a mass and principal moments of inertia of at least 0, found {kg} kg '
            f'and {moments.tolist()} kg m^2; correct them.'
        )
    return kg


def _tree_problems(
    joints: Mapping[str, _Joint], links: Mapping[str, float], where: str
) -> Iterator[str]:
    for joint in joints.values():
        for side, name in (('parent', joint.parent), ('child', joint.child)):
            if name not in links:
                yield (
                    f'{where}: joint {joint.name}: expected its {side} among the links, found '
                    f'{shown(name)}; correct it.'
                )
    children = [joint.child for joint in joints.values()]
    bases = [name for name in links if name not in children]
    twice = sorted({name for name in children if children.count(name) > 1})
    # In a ring every link hangs from another one, and none of them from the base.
    ways = (_way_to(name, joints) for name in children)
    is_ring = any(joints[way[0]].parent not in bases for way in ways)
    if len(bases) != 1 or twice or is_ring:
        yield (
            f'{where}: expected one base from which every link hangs by one joint, found the '
            f'bases {shown(bases)}, hanging twice {shown(twice)}'
            f'{", and links in a ring" * is_ring}; connect them as a tree.'
        )


def _joint_problems(arm: ArmFile, joints: Mapping[str, _Joint], where: str) -> Iterator[str]:
    moving = [name for name, joint in joints.items() if joint.kind != 'fixed']
    locked = [entry.joint for entry in arm.locked]
    for key, names in (('joints', arm.joints), ('locked', locked)):
        for name in names:
            if name not in moving:
                yield _unknown(f'{where}: {key}', name, moving, 'joint that moves')
    lock = 'take it out of joints and state its position in locked'
    for joint in (joints[name] for name in arm.joints if name in moving):
        if joint.follows is not None:
            yield (
                f'{where}: joint {joint.name}: expected one with a motor of its own, found a '
                f'mimic of {shown(joint.follows)}; {lock}.'
            )
        elif joint.kind == 'prismatic':
            yield (
                f'{where}: joint {joint.name}: expected one that turns, found a prismatic one, '
                f'which slides; {lock}.'
            )
        elif joint.kind == 'continuous' and arm.limits.position_rad is None:
            yield (
                f'{where}: joint {joint.name}: expected a range, found a continuous one, which '
                'has none; state limits.position_rad, of every joint, in the arm file.'
            )
    if missing := [name for name in moving if name not in (*arm.joints, *locked)]:
        yield (
            f'{where}: locked: expected all joints that are not controlled, {shown(missing)} '
            'missing; state where they are locked, or control them.'
        )


def _unknown(where: str, name: str, valid: list[str], what: str) -> str:
    near = difflib.get_close_matches(name, valid, n=1)
    hint = f'did you mean {near[0]!r}?' if near else f'there are {shown(valid)}.'
    return f'{where}: expected a {what} of the URDF, found {shown(name)}; {hint}'


def _way_to(link: str, joints: Mapping[str, _Joint]) -> list[str]:
    """Return the joints on the way from the base to a link."""
    above = {joint.child: joint for joint in joints.values()}
    way: list[str] = []
    while link in above and above[link].name not in way:
        way.append(above[link].name)
        link = above[link].parent
    return way[::-1]


def _chain_problems(
    arm: ArmFile, joints: Mapping[str, _Joint], links: Mapping[str, float], where: str
) -> Iterator[str]:
    if arm.payload_frame not in links:
        yield _unknown(f'{where}: payload_frame', arm.payload_frame, list(links), 'link')
        return
    way = [name for name in _way_to(arm.payload_frame, joints) if name in arm.joints]
    if way != list(arm.joints):
        yield (
            f'{where}: joints: expected those on the way from the base to the payload_frame '
            f'{arm.payload_frame}, in their order, {shown(way)}, found {shown(list(arm.joints))}; '
            'put them in that order, and lock those of other branches.'
        )


def _mass_problems(
    arm: ArmFile, joints: Mapping[str, _Joint], links: Mapping[str, float], where: str
) -> Iterator[str]:
    """Yield joints that move nothing: all links between them and the next have no mass."""
    carried: dict[str, dict[str, float]] = {name: {} for name in arm.joints}
    for link, kg in links.items():
        movers = [name for name in _way_to(link, joints) if name in carried]
        if movers:
            carried[movers[-1]][link] = kg
    for name, masses in carried.items():
        if sum(masses.values()) <= 0.0:
            yield (
                f'{where}: joint {name}: expected a link with mass behind it, found none in '
                f'{shown(list(masses))}; add <inertial> from data sheet, CAD or identification.'
            )


def _limit_problems(arm: ArmFile, joints: Mapping[str, _Joint], where: str) -> Iterator[str]:
    stated = {
        'effort': ('effort_nm', arm.limits.effort_nm),
        'velocity': ('velocity_radps', arm.limits.velocity_radps),
    }
    for name in arm.joints:
        limit = joints[name].limit
        for attribute, (key, override) in stated.items():
            if override is None and limit.get(attribute, 0.0) <= 0.0:
                yield (
                    f'{where}: joint {name}: expected a limit of {attribute} above 0, found '
                    f'{limit.get(attribute, "none")}; state it, or limits.{key} in the arm file.'
                )
        lower, upper = (limit.get(key, 0.0) for key in POSITION_KEYS)
        if arm.limits.position_rad is None and lower >= upper:
            yield (
                f'{where}: joint {name}: expected a range from lower to upper, found {lower} to '
                f'{upper} rad; state it, or limits.position_rad in the arm file.'
            )


def _limits(arm: ArmFile, joints: Mapping[str, _Joint]) -> JointLimits:
    def of_urdf(attribute: str) -> tuple[float, ...]:
        return tuple(joints[name].limit.get(attribute, 0.0) for name in arm.joints)

    def either(stated: tuple[float, ...] | None, attribute: str) -> tuple[float, ...]:
        return of_urdf(attribute) if stated is None else stated

    stated = arm.limits
    lower = either(stated.position_lower_rad, 'lower')
    if stated.position_rad is not None and stated.position_lower_rad is None:
        lower = tuple(-upper for upper in stated.position_rad)
    effort_nm = either(stated.effort_nm, 'effort')
    require_length('StatedLimits', len(arm.joints), effort_nm=effort_nm)
    return JointLimits(
        effort_nm=effort_nm,
        effort_rate_nmps=stated.effort_rate_nmps,
        position_rad=either(stated.position_rad, 'upper'),
        velocity_radps=either(stated.velocity_radps, 'velocity'),
        position_lower_rad=lower,
    )


def _plain_text(root: ElementTree.Element) -> str:
    """Return the URDF with nothing but links, inertias and joints of range."""
    for element in [root, *root.findall('link')]:
        for child in list(element):
            if child.tag in IGNORED:
                element.remove(child)
    for joint in root.findall('joint'):
        for child in list(joint):
            if child.tag in ('limit', 'mimic'):
                joint.remove(child)
        if joint.get('type') == 'continuous':
            # It would be two numbers, sine and cosine, to a library; here an angle is one.
            joint.set('type', 'revolute')
        if joint.get('type') != 'fixed':
            # Parsers insist on limits; those that count are in `CheckedArm.limits`.
            bounds = {'lower': '-1e6', 'upper': '1e6', 'effort': '1e6', 'velocity': '1e6'}
            ElementTree.SubElement(joint, 'limit', bounds)
    return ElementTree.tostring(root, encoding='unicode')
