# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the YAML files of `config/` into frozen values, and makes the plant that these describe.

`provenance` is what a result file says of them, so that its run can be repeated.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
import platform
import subprocess
import sys
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from metactl_ros.arm_defaults import controller_of, friction_of, require_stable_kd, task_of
from metactl_ros.arm_file import load_urdf_arm
from metactl_ros.config import (
    build,
    for_joints,
    LATER,
    require_joints,
    require_length,
    require_not_negative,
    require_positive,
    shown,
    stated,
)
from metactl_ros.control.lyapunov import for_each_joint
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.bounds import require_friction_step
from metactl_ros.dynamics.friction import Friction, smallest_smoothing
from metactl_ros.dynamics.rigid_body import ArmModel
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.dynamics.urdf_arm import FromUrdf
from metactl_ros.errors import ConfigError
from metactl_ros.files import read_yaml
from metactl_ros.sim.described_arm import described_arm
from metactl_ros.sim.faults import Fault, parse_faults, plant_entries
from metactl_ros.sim.implicit_arm import ImplicitArm
from metactl_ros.sim.plant import Plant, SensedPlant, Sensing
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.task import Task

T = TypeVar('T')
PlantName: TypeAlias = Literal['rk4', 'bullet', 'pinocchio']
TWO_LINK = 'two_link'
"""The name of the arm of `config/arm.yaml`."""
FILES = ('params_file', 'controller_file', 'classical_file')
"""Settings of a controller that name files."""
SOURCES = ('metactl_ros', 'training', 'config')
"""What decides a result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantSettings:
    """The simulated world, as `config/plant.yaml` states it."""

    substep_hz: float
    """Physics rate of the PyBullet plant, a whole multiple of the control rate, Hz."""
    friction: Friction
    task: Task
    sensing: Sensing
    payload_scale_per_kg: float | None = None
    """None: the payload p is a point mass at the tip. Else, as in the paper, M and with it C are
    those of the bare arm times 1 + this p, and gravity is the bare arm's; only RK4, 1 / kg."""
    link_mass_factor: float = field(default=1.0, metadata=LATER)
    """How much heavier the links are than `config/arm.yaml`, and so the controller, has them."""

    def __post_init__(self) -> None:
        require_positive(
            'PlantSettings', substep_hz=self.substep_hz, link_mass_factor=self.link_mass_factor
        )
        if self.payload_scale_per_kg is not None:
            require_not_negative('PlantSettings', payload_scale_per_kg=self.payload_scale_per_kg)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The arm, the world around it and the controller."""

    arm: ArmModel
    plant: PlantSettings
    controller: ControllerSettings

    @property
    def two_link(self) -> Arm:
        """The arm where only the one in closed form will do, as in the studies of the paper.

        Raises:
            ConfigError: If it is from a URDF.
        """
        if not isinstance(self.arm, Arm):
            raise ConfigError(
                'arm: expected the two-link arm in closed form, found one from a URDF.'
            )
        return self.arm

    @property
    def episode_steps(self) -> int:
        """Control steps in one episode of the paper's horizon T."""
        return round(self.controller.context.horizon_s * self.controller.law.rate_hz)

    def __post_init__(self) -> None:
        task, sensing, num_joints = self.plant.task, self.plant.sensing, len(self.arm.joint_names)
        require_length(
            'Task', num_joints, amplitude_rad=task.amplitude_rad, omega_radps=task.omega_radps
        )
        if sensing.actuator_limit_nm is not None:
            require_length('Sensing', num_joints, actuator_limit_nm=sensing.actuator_limit_nm)
        if task.centre_rad is not None:
            require_length('Task', num_joints, centre_rad=task.centre_rad)
        if self.controller.num_joints != num_joints:
            raise ConfigError(
                f'lyapunov.p_matrix: expected that of {num_joints} joints, one row for the error '
                f'and one for the slope of each, found {2 * self.controller.num_joints} rows; '
                'state one 2 x 2 block, or all of it, or leave it out for an arm from a URDF.'
            )
        rate_hz = self.controller.law.rate_hz
        friction = self.plant.friction
        require_joints(friction, num_joints)
        if not isinstance(self.arm, Arm):
            return  # no explicit step of a control period is taken; `make_plant` knows which is
        inertia = self.arm.smallest_inertia_kgm2()
        least = smallest_smoothing(friction, num_joints, inertia, 1.0 / rate_hz)
        found = for_joints(friction.smoothing_velocity_radps, num_joints)
        if np.any(found < least):
            worst = int(np.argmax(least - found))
            raise ConfigError(
                f'friction.smoothing_velocity_radps: expected at least {least[worst]:.4f} rad/s '
                f'for {self.arm.joint_names[worst]} at {rate_hz} Hz, found {found[worst]}; below '
                'it the arm chatters at rest.'
            )


def share_directory() -> Path:
    """Return the folder that holds `config/` and `launch/`: the checkout, or the installed share.

    Wheels and colcon both put the module at <prefix>/lib/pythonX.Y/site-packages/metactl_ros and
    its data at <prefix>/share/metactl_ros.
    """
    package = Path(__file__).resolve().parent
    installed = [prefix / 'share' / 'metactl_ros' for prefix in package.parents]
    for folder in (package.parent, *installed):
        if (folder / 'config' / 'arm.yaml').is_file():
            return folder
    raise ConfigError(
        f'config/arm.yaml: found neither beside {package} nor in a share/metactl_ros above it; '
        'install metactl_ros again.'
    )


def shipped_policy() -> Path:
    """Return the path of the policy bundle that comes with the package."""
    return share_directory() / 'config' / 'policies' / 'adaptive.metactl'


def shipped_policies() -> list[Path]:
    """Return the paths of all policy bundles that come with the package."""
    return sorted((share_directory() / 'config' / 'policies').glob('*.metactl'))


def policy_file(name_or_path: Path | str) -> Path:
    """Return the path of a policy bundle: itself, or config/policies/NAME.metactl of the package.

    Raises:
        ConfigError: If there is neither; it lists the names there are.
    """
    shipped = {path.stem: path for path in shipped_policies()}
    path = Path(name_or_path)
    if path.exists():
        return path
    if str(name_or_path) not in shipped:
        raise ConfigError(
            f'policy: expected the path of a bundle NAME.metactl or one of {sorted(shipped)}, '
            f'found {str(name_or_path)!r}.'
        )
    return shipped[str(name_or_path)]


def require_files(values: Mapping[str, Any]) -> None:
    """Refuse settings of which one names a file, or a policy, that does not exist.

    Args:
        values: By name; an empty one names no file.

    Raises:
        ConfigError: With the name of the setting.
    """
    for name in FILES:
        path = values.get(name)
        if path and not Path(path).is_file():
            raise ConfigError(
                f'{name}: expected the path of a file, found {str(path)!r}, which is none; check '
                'the spelling, or give all of the path.'
            )
    if values.get('arm_file'):
        path = arm_path(values['arm_file'])
        if not path.is_file():
            raise ConfigError(
                f'arm_file: expected the path of a file, found {str(path)!r}, which is none, nor '
                'the name of a shipped arm; check the spelling, or give all of the path.'
            )
    if policy := values.get('policy'):
        policy_file(policy)


def faults_file(name_or_path: Path | str) -> Path:
    """Return the path of a fault scenario: itself, or config/faults/NAME.yaml of the package.

    Raises:
        ConfigError: If there is neither; it lists the names there are.
    """
    folder = share_directory() / 'config' / 'faults'
    for path in (Path(name_or_path), folder / f'{name_or_path}.yaml'):
        with suppress(OSError):  # a name that is too long
            if path.is_file():
                return path
    names = sorted(path.stem for path in folder.glob('*.yaml'))
    raise ConfigError(
        f'faults: expected the path of a YAML file or one of {names}, '
        f'found {shown(str(name_or_path))}.'
    )


def arm_path(name_or_path: Path | str | None = None) -> Path:
    """Return the path of an arm file: itself, or of a shipped arm; none is the two-link arm.

    Raises:
        ConfigError: If there is neither; it lists the names there are.
    """
    config = share_directory() / 'config'
    shipped = {TWO_LINK: config / 'arm.yaml'}
    others = {path.stem: path for path in (config / 'arms').glob('*.yaml')}
    # `fr3.plant.yaml` belongs to the arm `fr3`, and is none itself.
    shipped |= {name: path for name, path in sorted(others.items()) if '.' not in name}
    name = str(name_or_path or TWO_LINK)
    if name in shipped:
        return shipped[name]
    if Path(name).suffix or len(Path(name).parts) > 1:
        return Path(name)
    raise ConfigError(
        f'arm: expected the path of an arm file or one of {list(shipped)}, found {shown(name)}, '
        'which is neither; check the spelling, or give all of the path.'
    )


def load_arm(name_or_path: Path | str | None = None) -> ArmModel:
    """Return the arm of a file or of a shipped name: in closed form, or from a URDF.

    Raises:
        MissingDependency: If it is from a URDF, and Pinocchio is not installed.
    """
    path = arm_path(name_or_path)
    if is_from_urdf(path):
        return load_urdf_arm(path)
    return load_file(Arm, path, '')


def is_from_urdf(arm: Path | str | None) -> bool:
    """Return whether an arm file describes an arm by a URDF, instead of two rods."""
    content = read_yaml(arm_path(arm))
    return isinstance(content, Mapping) and 'urdf' in content


def load_settings(
    arm: Path | str | None = None, plant: Path | None = None, controller: Path | None = None
) -> Settings:
    """Return everything the YAML files state; any file not given is the shipped one.

    For an arm from a URDF that is the shipped one scaled to its joints, with what files beside the
    arm file state otherwise; see `arm_defaults.py`.
    """
    model = load_arm(arm)
    return Settings(
        arm=model,
        plant=load_plant(model, plant),
        controller=load_controller(model, controller),
    )


def load_plant(arm: ArmModel, path: Path | None = None) -> PlantSettings:
    """Return the world around an arm, from a file if there is one; see `load_settings`."""
    if not isinstance(arm, FromUrdf):
        return load_file(PlantSettings, path, 'plant.yaml')
    shipped = load_file(PlantSettings, None, 'plant.yaml')
    scaled = replace(
        shipped,
        friction=friction_of(arm, shipped.friction),
        task=task_of(arm, shipped.task, arm.checked.file.rated_payload_kg),
    )
    return _overruled(PlantSettings, scaled, arm, path, 'plant')


def load_controller(arm: ArmModel, path: Path | None = None) -> ControllerSettings:
    """Return the controller of an arm, from a file if there is one; see `load_settings`.

    Raises:
        ConfigError: If an arm from a URDF would fall with what it is rated for.
    """
    if not isinstance(arm, FromUrdf):
        return load_file(ControllerSettings, path, 'controller.yaml')
    rated_kg = arm.checked.file.rated_payload_kg
    shipped = load_file(ControllerSettings, None, 'controller.yaml')
    scaled = controller_of(arm, shipped, rated_kg)
    settings = _overruled(ControllerSettings, scaled, arm, path, 'controller')
    if settings is not scaled:  # those hold it by construction
        require_stable_kd(arm, settings, rated_kg)
    return settings


def _overruled(cls: type[T], scaled: T, arm: FromUrdf, path: Path | None, kind: str) -> T:
    """Return settings with what a file states instead: one given, or else one beside the arm's."""
    source = arm.checked.path.with_suffix(f'.{kind}.yaml') if path is None else path
    if path is None and not source.is_file():
        return scaled
    changes = read_yaml(source)
    if not isinstance(changes, Mapping):
        raise ConfigError(f'{source.name}: expected a table of settings, found {shown(changes)}.')
    mapping = _merged(stated(scaled), changes)
    lyapunov = mapping.get('lyapunov')
    if isinstance(lyapunov, dict):
        rows = lyapunov.get('p_matrix')
        lyapunov['p_matrix'] = for_each_joint(rows, len(arm.joint_names))
    return build(cls, mapping, source.name)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with what another one states instead, table by table."""
    merged = dict(base)
    for key, value in changes.items():
        old = base.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged


def build_settings(content: object, where: str) -> Settings:
    """Return the settings of the two-link arm that `provenance` wrote into a file."""
    found = build(_Stated, content, where)
    return Settings(arm=found.arm, plant=found.plant, controller=found.controller)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stated:
    """Settings as a file of results has them."""

    arm: Arm
    plant: PlantSettings
    controller: ControllerSettings


def load_file(cls: type[T], path: Path | None, shipped: str) -> T:
    """Return a YAML file as a dataclass; without a path, the shipped file of that name."""
    source = share_directory() / 'config' / shipped if path is None else path
    return build(cls, read_yaml(source), source.name)


def load_faults(path: Path, num_joints: int) -> list[Fault]:
    """Return the faults of a scenario file that are for the simulated robot, and its joints.

    The file holds a list `faults`; whatever else it holds is for others, see `hil/`.
    """
    entries = plant_entries(read_yaml(path), path.name)
    return parse_faults(entries, num_joints, f'{path.name}: faults')


def make_plant(name: PlantName, settings: Settings) -> Plant:
    """Return a plant with the sensing effects of the settings; close it after use."""
    friction, rate_hz = settings.plant.friction, settings.controller.law.rate_hz
    plant: Plant
    if not isinstance(settings.arm, Arm):
        plant = _urdf_plant(name, settings)
    elif name == 'pinocchio':
        raise ConfigError(
            'plant: expected bullet or rk4 for an arm without a URDF, found pinocchio.'
        )
    elif name == 'rk4':
        plant = make_true_arm(settings)
    elif settings.plant.payload_scale_per_kg is not None:
        raise ConfigError(
            'payload_scale_per_kg: the PyBullet plant carries payloads at the tip only; take the '
            'rk4 plant, or leave it out.'
        )
    else:
        # Imported here: only a process that simulates with PyBullet needs it installed.
        from metactl_ros.sim.bullet_arm import BulletArm

        plant = BulletArm(_true_links(settings), friction, rate_hz, settings.plant.substep_hz)
    return SensedPlant(plant, settings.plant.sensing, rate_hz)


def usual_plant(arm: ArmModel) -> PlantName:
    """Return the plant that simulates an arm unless another one is asked for.

    PyBullet if it is installed: it has no wheels for Python 3.12, and none shall need a compiler.
    """
    if not isinstance(arm, Arm):
        return 'pinocchio'
    return 'bullet' if find_spec('pybullet') is not None else 'rk4'


def _urdf_plant(name: PlantName, settings: Settings) -> Plant:
    """Return a plant for an arm from a URDF."""
    plant, arm, rate_hz = settings.plant, settings.arm, settings.controller.law.rate_hz
    assert isinstance(arm, FromUrdf)
    if plant.payload_scale_per_kg is not None:
        raise ConfigError(
            'payload_scale_per_kg: the plants of arms from a URDF carry payloads at the payload '
            'frame only; leave it out.'
        )
    if name == 'pinocchio':
        body = arm.simulated(plant.link_mass_factor)
        num_joints = len(arm.joint_names)
        return ImplicitArm(body, num_joints, plant.friction, rate_hz, plant.substep_hz)
    if name == 'rk4':
        raise ConfigError(
            'plant: the rk4 plant is for the two-link arm in closed form; take pinocchio, found '
            'rk4.'
        )
    from metactl_ros.sim.bullet_arm import BulletArm

    require_friction_step(arm, plant.friction, 1.0 / plant.substep_hz)
    described = described_arm(arm.checked, plant.link_mass_factor)
    return BulletArm(described, plant.friction, rate_hz, plant.substep_hz)


def make_true_arm(settings: Settings) -> Rk4Arm:
    """Return the simulated two-link arm itself, without sensors between."""
    plant, rate_hz = settings.plant, settings.controller.law.rate_hz
    return Rk4Arm(_true_links(settings), plant.friction, rate_hz, plant.payload_scale_per_kg)


def _true_links(settings: Settings) -> Arm:
    """Return the arm as it is, whatever the controller takes it for."""
    arm = settings.two_link
    masses = tuple(settings.plant.link_mass_factor * kg for kg in arm.link_masses_kg)
    return replace(arm, link_masses_kg=masses)


def provenance(settings: Settings) -> dict[str, object]:
    """Return the resolved settings, the versions, the code and the command, for a result file."""
    packages = ('metactl_ros', 'numpy', 'pybullet', 'torch', 'stable-baselines3')
    return {
        'settings': {
            'arm': settings.arm.statement(),
            'plant': stated(settings.plant),
            'controller': stated(settings.controller),
        },
        'versions': {'python': platform.python_version()}
        | {name: version for name in packages if (version := _version(name))},
        'code': code_of_checkout(),
        'command': [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def code_of_checkout() -> str | None:
    """Return the commit that this very code belongs to, as `code_version` names it."""
    return code_version(Path(__file__).parents[1])


def code_version(root: Path) -> str | None:
    """Return the commit of a checkout, with a plus if its sources differ; None outside of one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ['git', '-C', root, *arguments], capture_output=True, check=True, text=True
        )
        return done.stdout.strip()

    try:
        if Path(git('rev-parse', '--show-toplevel')) != root.resolve():
            return None  # installed somewhere within a checkout of something else
        commit = git('rev-parse', '--short=12', 'HEAD')
        is_changed = git('status', '--porcelain', '--', *SOURCES)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + '+' * bool(is_changed)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
