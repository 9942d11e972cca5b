# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of arms from URDFs: what they are bound to, how they are made, who loads them."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from metactl_ros.adapt import adapt, adapted_law
from metactl_ros.baselines import load_learned
from metactl_ros.errors import BundleError, ConfigError
from metactl_ros.policy.bundle import read_bundle
from metactl_ros.policy.contract import hash_of
from metactl_ros.settings import load_settings, policy_file, shipped_policy

pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")


@pytest.fixture(scope='module')
def settings():
    return load_settings('ur5e')


@pytest.fixture(scope='module')
def made(settings, tmp_path_factory):
    out = tmp_path_factory.mktemp('bundles') / 'ur5e.metactl'
    return adapt(shipped_policy(), out, settings, ('metactl', 'adapt')), out


def changed(arm, change):
    """Return an arm whose URDF was changed."""
    root = ElementTree.fromstring(arm.checked.urdf)
    change(root)
    text = ElementTree.tostring(root, encoding='unicode')
    return type(arm)(arm.checked._replace(urdf=text))


def test_the_hash_of_an_arm_is_not_that_of_its_file(settings):
    def turn_around(root):
        root[:] = list(reversed(root))

    def make_heavier(root):
        mass = root.find('link/inertial/mass/..')
        for mass in root.iter('mass'):
            mass.set('value', str(1.001 * float(mass.get('value'))))

    own = hash_of(settings.arm.reduced())
    assert hash_of(changed(settings.arm, turn_around).reduced()) == own
    assert hash_of(changed(settings.arm, make_heavier).reduced()) != own


def test_the_masses_and_the_payload_frame_are_those_of_the_model(settings):
    reduced, arm = settings.arm.reduced(), settings.arm
    q = np.zeros(6)
    screws, payload = np.array(reduced.screws), np.array(reduced.payload_at_m)
    jacobian = screws[:, :3] + np.cross(screws[:, 3:], payload)
    np.testing.assert_allclose(
        arm.body_per_kg().inertia_matrix(q), jacobian @ jacobian.T, atol=1e-8
    )


@pytest.mark.slow
def test_a_bundle_is_loaded_by_its_arm_alone(made, settings):
    bundle, path = made
    assert bundle.controller.lyapunov.has_margin
    assert bundle.contract.schema_version == 2
    assert load_learned(path, settings.arm, settings.controller).sha256 == bundle.sha256
    assert '**simulation** of this arm' in read_bundle(path).card
    other = load_settings('fr3')
    with pytest.raises(BundleError, match='joint_names'):
        load_learned(path, other.arm, other.controller)
    two_link = load_settings()
    with pytest.raises(BundleError, match='made for an arm from a URDF, found the two-link arm'):
        load_learned(path, two_link.arm, two_link.controller)


@pytest.mark.slow
def test_an_arm_that_is_a_little_heavier_refuses_it(made, settings):
    def make_heavier(root):
        next(root.iter('mass')).set('value', '9.0')
        list(root.iter('mass'))[2].set('value', '9.0')

    arm = changed(settings.arm, make_heavier)
    with pytest.raises(BundleError, match=r'arm\.link_inertias: this robot has'):
        load_learned(made[1], arm, settings.controller)


def test_only_an_adaptive_law_fits_other_arms(settings):
    with pytest.raises(BundleError, match='holds no adaptive law, the only one that fits other'):
        adapted_law(policy_file('paper_sac'), settings.arm, settings.controller)


def test_another_rate_is_refused(settings):
    law = replace(settings.controller.law, rate_hz=200.0)
    with pytest.raises(BundleError, match='was trained at 100 Hz'):
        adapted_law(shipped_policy(), settings.arm, replace(settings.controller, law=law))


def test_the_two_link_arm_needs_none(tmp_path):
    with pytest.raises(ConfigError, match='expected one from a URDF, found the two-link arm'):
        adapt(shipped_policy(), tmp_path / 'a.metactl', load_settings(), ())
