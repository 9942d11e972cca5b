# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What ~/bundle tells of a controller that is not the robot's own, and how a bag is read back.

Gains and estimator of a rival come from a file that may be another one when its bag is replayed.
So the node puts them into the bag, as JSON, which keeps every bit of a number.
"""

from dataclasses import asdict, dataclass, replace
import json

from metactl_ros.config import build
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.gain_map import GainBox, GainMap
from metactl_ros.control.settings import ControllerSettings
from metactl_ros.dynamics.two_link import NUM_JOINTS
from metactl_ros.errors import ConfigError
from metactl_ros.signals import Array

TOLD = 'settings'
"""Its name among the facts of ~/bundle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToldSettings:
    """What of a controller is not in the robot's `controller.yaml`."""

    gain_box: GainBox
    estimator: EstimatorSettings | None = None
    action: tuple[float, ...] | None = None
    """What a constant policy proposes, shape (m,); none of one that depends on what it sees."""

    def __post_init__(self) -> None:
        size = GainMap(self.gain_box, NUM_JOINTS).size
        if self.action is not None and len(self.action) != size:
            raise ConfigError(
                f'ToldSettings.action: expected {size} entries, one per gain, '
                f'found {len(self.action)}.'
            )

    def applied_to(self, robot: ControllerSettings) -> ControllerSettings:
        """Return the settings of the controller on a robot."""
        return replace(robot, gain_box=self.gain_box, estimator=self.estimator)


def tell(controller: ControllerSettings, action: Array | None) -> str:
    """Return the JSON of a controller, and of the action, shape (m,), of a constant policy."""
    told = ToldSettings(
        gain_box=controller.gain_box,
        estimator=controller.estimator,
        action=None if action is None else tuple(action.tolist()),
    )
    return json.dumps(asdict(told))


def hear(text: str, where: str) -> ToldSettings:
    """Return what `tell` told.

    Raises:
        ConfigError: If it is nothing of the kind.
    """
    try:
        return build(ToldSettings, json.loads(text), where)
    except (ValueError, RecursionError) as error:  # not JSON, not these settings, nested forever
        raise ConfigError(f'{where}: cannot be read ({error}); record again.') from None
