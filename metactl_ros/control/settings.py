# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that decides what a control loop does, but its policy."""

from dataclasses import dataclass, field

from metactl_ros.config import LATER, require_joints, require_length
from metactl_ros.control.estimators.bank_estimation import token_size
from metactl_ros.control.estimators.choice import EstimatorSettings
from metactl_ros.control.gain_map import GainBox
from metactl_ros.control.guard import GuardSettings
from metactl_ros.control.guiding import GuidingSettings
from metactl_ros.control.law import LawSettings
from metactl_ros.control.lyapunov import LyapunovSettings
from metactl_ros.control.modes import ModeSettings
from metactl_ros.control.window import ContextSettings
from metactl_ros.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSettings:
    """The controller, as `config/controller.yaml` states it."""

    law: LawSettings
    gain_box: GainBox
    lyapunov: LyapunovSettings
    context: ContextSettings
    modes: ModeSettings
    guard: GuardSettings
    estimator: EstimatorSettings | None = None
    """Of what the model lacks: the column `estimate`, and extra features of the context."""
    guiding: GuidingSettings | None = field(default=None, metadata=LATER)
    """Of an arm that is guided by hand, in place of the law; then nothing is followed."""

    def __post_init__(self) -> None:
        allowed = self._allowed_extra()
        if self.context.num_extra not in allowed:
            raise ConfigError(
                f'context.num_extra: expected one of {allowed}, the joints of an estimator if '
                f'there is one, found {self.context.num_extra}.'
            )
        if self.estimator is None and 'estimate' in self.gain_box.columns:
            raise ConfigError(
                'gain_box.feed_forward: has a column `estimate`, but there is no estimator; '
                'remove the column, or state an estimator.'
            )
        if self.guiding is not None and self.estimator is not None:
            raise ConfigError(
                'guiding: nothing is estimated of an arm that is guided by hand, but there is an '
                'estimator; leave it out of controller.yaml.'
            )
        if self.lyapunov.has_margin and not self.gain_box.layout.counts_on_estimate:
            raise ConfigError(
                'lyapunov.rho_nm: is how far an estimate may be off, but gain_box.feed_forward '
                f'has no column `estimate`, found {list(self.gain_box.columns)}; state an '
                'estimator and its column, or leave rho_nm out.'
            )
        self._require_joints()

    def _allowed_extra(self) -> tuple[int, ...]:
        """Return how many features an estimator may add to the context."""
        if self.estimator is None:
            return (0,)
        bank = self.estimator.bank
        if bank is None:
            return 0, self.num_joints
        tokens = self.num_joints * token_size(bank.num_delays)
        return (tokens,) if bank.is_scheduled else (0, tokens)

    @property
    def payload_max_kg(self) -> float:
        """The heaviest payload that the model of the law may have, kg."""
        bank = None if self.estimator is None else self.estimator.bank
        return 0.0 if bank is None else bank.payload_max_kg

    def _require_joints(self) -> None:
        """Refuse what is stated per joint for another number of joints than P's."""
        require_joints(self.law, self.num_joints)
        self.gain_box.ends(self.num_joints)
        if isinstance(self.lyapunov.rho_nm, tuple):
            require_length('LyapunovSettings', self.num_joints, rho_nm=self.lyapunov.rho_nm)
        if self.guiding is not None:
            require_joints(self.guiding, self.num_joints)
        if self.estimator is not None and self.estimator.lugre_observer is not None:
            require_joints(self.estimator.lugre_observer, self.num_joints)
        if self.estimator is not None and self.estimator.oracle is not None:
            require_joints(self.estimator.oracle.friction, self.num_joints)

    @property
    def num_joints(self) -> int:
        """N of the arm that it controls: P has a row for the error and the slope of each joint."""
        return len(self.lyapunov.p_matrix) // 2
