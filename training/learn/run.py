# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A training run: what it is asked for, `RUN/config.json`, and what is made from that.

    RUN/config.json            written before the first step; resumed_with: other code since then

A run may change one setting, to see what makes its result: a difference of
`config/differences.yaml`. It is a part of the settings, of the preset, or of both, that is laid
over what is shipped; what it does not mention stays.

`checkpoint.py` has the rest of a run directory.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast, Literal, TypeVar

import numpy as np
import torch

from metactl_ros.baselines import load_baselines, on_bank
from metactl_ros.config import build, require_not_negative, require_positive, shown
from metactl_ros.control.estimators.bank_estimation import action_of
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.window import Tokens
from metactl_ros.errors import ConfigError, MetactlError
from metactl_ros.files import read_yaml, write_json
from metactl_ros.settings import (
    build_settings,
    code_of_checkout,
    load_file,
    PlantName,
    provenance,
    Settings,
    share_directory,
)
from metactl_ros.signals import Array
from training.commands import read_json
from training.learn.env import ArmEnv
from training.learn.networks import make_policy_kwargs, Model, NetworkConfig
from training.learn.shielded_sac import ShieldedSAC, WindowReplayBuffer

DIFFERENCES = 'differences.yaml'
T = TypeVar('T')

# Of an actor that begins at a given action: the largest entry, how much its answer depends on
# what it sees, and the logarithm of its exploration's standard deviation.
MOST_INITIAL, SHRINK, INITIAL_LOG_STD = 0.99, 0.01, -3.0

AS_STATED = (
    *('learning_rate', 'buffer_size', 'learning_starts', 'batch_size', 'tau', 'gamma'),
    'distance_target',
)
"""What a preset says to the learner word by word."""

# Adam in one pass over the weights: the same update, a tenth of the calls.
FUSED = {'optimizer_kwargs': {'fused': True}}


class RunError(MetactlError, RuntimeError):
    """A run directory or a checkpoint cannot be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Hyper-parameters, as `config/training.yaml` states them."""

    gamma: float
    learning_rate: float
    batch_size: int
    buffer_size: int
    tau: float
    learning_starts: int
    reward_scale: float
    tokens: Tokens
    lagrangian_rate: float
    distance_target: float
    warm_start_share: float
    entropy_per_action: float = -1.0
    """Of SAC's target; -1 is its usual one, less explores less."""

    def __post_init__(self) -> None:
        above_0 = ('learning_rate', 'batch_size', 'buffer_size', 'tau', 'reward_scale')
        from_0_on = (
            *('gamma', 'learning_starts', 'lagrangian_rate', 'distance_target'),
            'warm_start_share',
        )
        require_positive('Preset', **{name: getattr(self, name) for name in above_0})
        require_not_negative('Preset', **{name: getattr(self, name) for name in from_0_on})


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets:
    """All of `config/training.yaml`."""

    paper: Preset
    robust: Preset
    bank: Preset


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that decides the outcome of a run, beside the settings files."""

    preset: str
    model: Model
    heads: int
    window: int
    tau_z: float
    seed: int
    steps: int
    plant: PlantName
    device: str
    hyper: Preset
    controller: Literal['policy', 'bank'] = 'policy'
    """What it learns to schedule: the law alone, or a bank of observers and the law."""
    difference: str | None = None
    """What it changes, by its name in config/differences.yaml; `hyper` has its part already."""

    def __post_init__(self) -> None:
        require_positive(
            'RunConfig', heads=self.heads, window=self.window, tau_z=self.tau_z, steps=self.steps
        )

    @property
    def name(self) -> str:
        """Return what identifies a run: by default the name of its folder."""
        size = f'k{self.heads}_w{self.window}'
        beta = '' if self.hyper.lagrangian_rate else '_beta0'
        base = '' if self.controller == 'policy' else f'{self.controller}_'
        what = f'{beta}_{self.difference}' if self.difference else beta
        return f'{base}{self.preset}_{self.model}_{size}_tau{self.tau_z:g}{what}_seed{self.seed}'


def settings_of(settings: Settings, run: RunConfig) -> Settings:
    """Return the settings that a run is made for.

    They have its difference, if it has one; with a bank there is another gain box.
    """
    settings = with_difference(settings, run.difference)
    if run.controller == 'policy':
        return settings
    return replace(settings, controller=on_bank(settings.controller))


def load_presets() -> Presets:
    """Return the shipped presets."""
    return load_file(Presets, None, 'training.yaml')


def choose_device(name: str) -> str:
    """Return 'cuda' or 'cpu' for 'auto', 'cuda' or 'cpu'."""
    has_gpu = torch.cuda.is_available()
    if name == 'cuda' and not has_gpu:
        raise ConfigError(
            '--device cuda: this machine has no GPU that torch can use; leave --device out.'
        )
    return ('cuda' if has_gpu else 'cpu') if name == 'auto' else name


def make_env(settings: Settings, run: RunConfig) -> ArmEnv:
    """Return the environment of a run."""
    return ArmEnv(
        settings,
        plant=run.plant,
        tau_z_s=run.tau_z,
        num_rows=run.window,
        reward_scale=run.hyper.reward_scale,
        warm_start_share=run.hyper.warm_start_share,
    )


def make_model(settings: Settings, run: RunConfig, env: ArmEnv, log_dir: Path) -> ShieldedSAC:
    """Return a fresh learner; its seed also seeds the environment and every generator."""
    hyper, controller = run.hyper, settings.controller
    sizes = (run.heads, run.window, controller.num_joints, controller.context.num_extra)
    network = NetworkConfig(run.model, *sizes, hyper.tokens)
    model = ShieldedSAC(
        'MlpPolicy',
        env,
        **{name: getattr(hyper, name) for name in AS_STATED},
        replay_buffer_class=WindowReplayBuffer,
        replay_buffer_kwargs={'num_rows': run.window},
        policy_kwargs={**make_policy_kwargs(network), **FUSED},
        target_entropy=hyper.entropy_per_action * env.loop.action_size,
        tensorboard_log=str(log_dir),
        seed=run.seed,
        device=run.device,
        lagrangian_rate=hyper.lagrangian_rate * hyper.reward_scale,
    )
    if run.controller == 'bank':
        begin_at(model.actor, first_action(settings, env.loop))
    return model


def first_action(settings: Settings, loop: ControlLoop) -> Array:
    """Return the gains and the schedule of the tuned bank with constant gains, shape (m,)."""
    estimator = settings.controller.estimator
    assert estimator is not None
    assert estimator.bank is not None
    gains = loop.gain_map.action(np.array(load_baselines().adaptive_bank.theta))
    return np.append(gains, action_of(estimator.bank, settings.controller.num_joints))


@torch.no_grad()
def begin_at(actor: Any, action: Array) -> None:
    """Let a fresh actor propose nearly one action, and explore little around it.

    Learning on top of a controller that is good already would first have to learn that one again:
    an exploring schedule costs more than all that is left to gain.
    """
    mean = np.arctanh(np.clip(action, -MOST_INITIAL, MOST_INITIAL))
    actor.mu.bias.copy_(torch.as_tensor(mean))
    actor.log_std.bias.fill_(INITIAL_LOG_STD)
    for layer in (actor.mu, actor.log_std):
        layer.weight.mul_(SHRINK)


def begin_run(folder: Path, settings: Settings, run: RunConfig) -> None:
    """Create the run directory and write its configuration; refuse to overwrite another run."""
    if (folder / 'config.json').exists():
        raise RunError(f'{folder}: holds a run already; go on with --resume, or choose --out.')
    write_json(folder / 'config.json', {'run': asdict(run), **provenance(settings)})


def note_code(folder: Path) -> None:
    """Write to the configuration of a run that other code goes on with it, if that is so."""
    content = _read_config(folder)
    code, others = code_of_checkout(), content.get('resumed_with', [])
    if code not in (content.get('code'), *others):
        write_json(folder / 'config.json', content | {'resumed_with': [*others, code]})


def read_run(folder: Path) -> RunConfig:
    """Return the configuration of a run directory."""
    content = _read_config(folder)
    return build(RunConfig, content.get('run'), str(folder / 'config.json'))


def read_origin(folder: Path) -> dict[str, Any]:
    """Return with what a run was trained: code, other code that went on, command, versions."""
    content = _read_config(folder)
    names = ('code', 'resumed_with', 'command', 'versions')
    return {name: content[name] for name in names if name in content}


def _read_config(folder: Path) -> dict[str, Any]:
    remedy = 'not a run directory: train one first, or name another.'
    found: dict[str, Any] = read_json(folder / 'config.json', remedy, RunError)
    return found


def read_settings(folder: Path) -> Settings:
    """Return the settings of a run directory: those of its training, not of today."""
    return build_settings(_stated_settings(folder), str(folder / 'config.json'))


def read_num_joints(folder: Path) -> int:
    """Return for how many joints a run was trained; also of versions with other settings."""
    try:
        return len(_stated_settings(folder)['arm']['joint_names'])
    except (KeyError, TypeError) as error:
        what = f'expected settings.arm.joint_names ({error}); train it again.'
        raise RunError(f'{folder / "config.json"}: {what}') from None


def _stated_settings(folder: Path) -> dict[str, Any]:
    settings = _read_config(folder).get('settings')
    if not isinstance(settings, dict):
        raise RunError(f"{folder / 'config.json'}: lacks 'settings'; train it again.")
    return settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that is changed."""

    here: str
    """How it is here."""
    changed: str
    """How it is in a run that names it."""
    settings: object = None
    """Laid over arm, plant and controller."""
    preset: object = None
    """Laid over the hyper-parameters."""


def load_differences() -> dict[str, Difference]:
    """Return all differences by name, in the order of the file."""
    found = read_yaml(share_directory() / 'config' / DIFFERENCES)
    if not isinstance(found, Mapping):
        raise ConfigError(f'{DIFFERENCES}: expected differences by name, found {shown(found)}.')
    return {str(n): build(Difference, entry, f'{DIFFERENCES}: {n}') for n, entry in found.items()}


def with_difference(value: T, name: str | None) -> T:
    """Return settings or a preset with a difference; unchanged without a name.

    To settings that have it already nothing happens.
    """
    if name is None:
        return value
    known = load_differences()
    if name not in known:
        raise ConfigError(f'difference: expected one of {list(known)}, found {shown(name)}.')
    part = known[name].settings if isinstance(value, Settings) else known[name].preset
    plain: Any = asdict(value)  # type: ignore[call-overload]
    laid, where = _laid_over(plain, part), f'{DIFFERENCES}: {name}'
    if isinstance(value, Settings):
        return cast(T, build_settings(laid, where))
    return build(type(value), laid, where)


def _laid_over(below: object, above: object) -> object:
    """Return a tree of plain values in which another one, where it says something, counts."""
    if above is None:
        return below
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{key: _laid_over(below.get(key), inner) for key, inner in above.items()}}
