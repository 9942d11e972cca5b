# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A sound bundle, a copy of it to damage, and how a robot loads either."""

from pathlib import Path
import shutil

import pytest

from metactl_ros.policy.bundle import load_bundle


@pytest.fixture(scope='module')
def made(settings, tmp_path_factory):
    from support.bundles import made_bundle  # needs torch, which not every test here does

    return made_bundle(tmp_path_factory, settings)


@pytest.fixture
def spoilt(made, tmp_path):
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / 'spoilt.metactl'))


@pytest.fixture
def load(settings):
    return lambda path: load_bundle(path, settings.arm, settings.controller)
