# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A finished run of `training.adapt`, as a controller of a robot."""

from collections.abc import Mapping
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

import torch

from metactl_ros.baselines import on_bank
from metactl_ros.config import build
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Policy
from metactl_ros.sim.rollout import with_window
from training.adaptive.learner import AdaptConfig
from training.adaptive.policy import bank_settings, policy_of
from training.adaptive.segments import Adaptive

CONFIG, BEST = 'config.json', 'best.pt'
PAYLOAD_MAX_KG = 3.0
"""What the two-link arm is rated for: HOME_PAYLOAD_KG of the worlds."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """What was learned."""

    config: AdaptConfig
    law: Adaptive
    record: Mapping[str, Any]
    """Run, command and versions, for files that come of it."""

    def policy(self, num_joints: int) -> Policy:
        """Return the policy for an arm, in torch."""
        return policy_of(self.law, num_joints)


def read_config(folder: Path) -> AdaptConfig:
    """Return the configuration of a run."""
    return build(AdaptConfig, _content(folder)['run'], f'{folder}/{CONFIG}')


def _content(folder: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f'{folder}/{CONFIG}: cannot be read ({error}); give a run of training.adapt.'
        ) from None
    return content


def read_adapted(folder: Path) -> Adapted:
    """Return the best law of a run."""
    content, config = _content(folder), read_config(folder)
    try:
        weights = torch.load(folder / BEST, weights_only=True)
    except OSError as error:
        raise ConfigError(
            f'{folder}/{BEST}: cannot be read ({error}); let the run judge itself once.'
        ) from None
    law = Adaptive(config.shape)
    law.load_state_dict(weights)
    names = ('run', 'command', 'versions', 'code')
    return Adapted(config, law, {name: content[name] for name in names})


def adaptive_controller(robot: ControllerSettings, trained: Adapted) -> ControllerSettings:
    """Return the settings of a robot whose bank is scheduled by what was learned."""
    bank = bank_settings(trained.law.constants, PAYLOAD_MAX_KG)
    return with_window(on_bank(robot, bank), trained.config.shape.window)
