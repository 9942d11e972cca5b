# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What decides how an arm from a URDF moves, whatever its file looks like.

Screws of the joints and inertias of the links are given in the frame of the base with all joints
at zero. Locked joints are part of links; frames of links, meshes and the order of a file do not
show. Two files with the same numbers here are the same arm to any controller.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from metactl_ros.config import require_length
from metactl_ros.dynamics.rigid_body import JointLimits

DECIMALS = 9
"""Numbers are rounded to these, in SI units: another version of a library may sum up otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReducedArm:
    """An arm as a bundle states it; one entry per joint unless stated."""

    joint_names: tuple[str, ...]
    limits: JointLimits
    screws: tuple[tuple[float, ...], ...]
    """Linear and angular velocity at the base of one rad / s of the joint."""
    link_inertias: tuple[tuple[float, ...], ...]
    """Mass, mass times centre, and inertia about the base: xx, xy, yy, xz, yz, zz."""
    rotor_inertia_kgm2: tuple[float, ...]
    gravity_mps2: tuple[float, ...]
    """In the frame of the base."""
    payload_joint: int
    """Behind which joint the payload is."""
    payload_at_m: tuple[float, ...]
    """Where it is."""
    rated_payload_kg: float

    def __post_init__(self) -> None:
        length = len(self.joint_names)
        require_length(
            'ReducedArm',
            length,
            screws=self.screws,
            link_inertias=self.link_inertias,
            rotor_inertia_kgm2=self.rotor_inertia_kgm2,
        )


def rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Return numbers as they are stated; there is one zero."""
    return tuple(round(float(x), DECIMALS) + 0.0 for x in values)
