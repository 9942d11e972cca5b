# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a controller as ~/bundle and a bag carry them.

Gains and estimator of a baseline come from a file that may be another one when its bag is
replayed. So the node publishes them as JSON, which keeps every bit of a number.
"""

from dataclasses import dataclass, replace
import json
from typing import Self

from metactl_ros.config import build, stated
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.gain_map import GainBox
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

SETTINGS = 'settings'
"""Their key in the table of ~/bundle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedController:
    """What of a controller is not in the robot's `controller.yaml`."""

    gain_box: GainBox
    estimator: EstimatorSettings | None = None
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
            action=None if action is None else tuple(action.tolist()),
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """Return what `to_json` wrote.

        Raises:
            ConfigError: If it is something else; `where` begins the message.
        """
        try:
            return build(cls, json.loads(text), where)
        except (ValueError, RecursionError) as error:  # not JSON, other settings, nested forever
            raise ConfigError(f'{where}: cannot be read ({error}); record again.') from None

    def to_json(self) -> str:
        """Return the text that ~/bundle carries."""
        return json.dumps(stated(self))

    def applied_to(self, robot: ControllerSettings) -> ControllerSettings:
        """Return the settings of the controller on a robot."""
        return replace(robot, gain_box=self.gain_box, estimator=self.estimator)
