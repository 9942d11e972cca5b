# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the YAML files of `config/` into frozen values, and makes the plant that these describe.

`provenance` is what a result file says of them, so that its run can be repeated.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
import platform
import subprocess
import sys
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from metactl_ros.config import (
    build,
    for_joints,
    LATER,
    require_length,
    require_not_negative,
    require_positive,
    shown,
    stated,
)
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.friction import Friction, smallest_smoothing
from metactl_ros.dynamics.two_link import Arm
from metactl_ros.errors import ConfigError
from metactl_ros.files import read_yaml
from metactl_ros.sim.faults import Fault, parse_faults, plant_entries
from metactl_ros.sim.plant import Plant, SensedPlant, Sensing
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.task import Task

T = TypeVar('T')
PlantName: TypeAlias = Literal['rk4', 'bullet']
FILES = ('params_file', 'arm_file', 'controller_file', 'classical_file')
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

    arm: Arm
    plant: PlantSettings
    controller: ControllerSettings

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
        rate_hz = self.controller.law.rate_hz
        friction = self.plant.friction
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


def load_arm(path: Path | None = None) -> Arm:
    """Return the arm of a YAML file, by default the shipped one."""
    return load_file(Arm, path, 'arm.yaml')


def load_settings(
    arm: Path | None = None, plant: Path | None = None, controller: Path | None = None
) -> Settings:
    """Return everything the YAML files state; any file not given is the shipped one."""
    return Settings(
        arm=load_arm(arm),
        plant=load_file(PlantSettings, plant, 'plant.yaml'),
        controller=load_file(ControllerSettings, controller, 'controller.yaml'),
    )


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
    if name == 'rk4':
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


def make_true_arm(settings: Settings) -> Rk4Arm:
    """Return the simulated arm itself, without sensors between."""
    plant, rate_hz = settings.plant, settings.controller.law.rate_hz
    return Rk4Arm(_true_links(settings), plant.friction, rate_hz, plant.payload_scale_per_kg)


def _true_links(settings: Settings) -> Arm:
    """Return the arm as it is, whatever the controller takes it for."""
    masses = tuple(settings.plant.link_mass_factor * kg for kg in settings.arm.link_masses_kg)
    return replace(settings.arm, link_masses_kg=masses)


def provenance(settings: Settings) -> dict[str, object]:
    """Return the resolved settings, the versions, the code and the command, for a result file."""
    packages = ('metactl_ros', 'numpy', 'pybullet', 'torch', 'stable-baselines3')
    return {
        'settings': stated(settings),
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
