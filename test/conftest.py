# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may use; settings are the shipped ones."""

from collections.abc import Generator
from dataclasses import replace
from importlib.util import find_spec
import signal

from hypothesis import settings as hypothesis_settings
import pytest

from metactl_ros.dynamics.friction import Friction
from metactl_ros.errors import MissingDependency
from metactl_ros.settings import load_settings, Settings

# Derandomised: a failure on one machine is a failure on every machine.
hypothesis_settings.register_profile('suite', deadline=None, derandomize=True)
hypothesis_settings.load_profile('suite')

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: tests
# of Ctrl-C would then wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='session')
def settings() -> Settings:
    return load_settings()


@pytest.fixture(scope='session')
def no_friction(settings: Settings) -> Friction:
    return replace(
        settings.plant.friction,
        coulomb_nm=0.0,
        static_nm=0.0,
        viscous_nmsprad=0.0,
        memory_gain_nmprad=0.0,
    )


def _skipping_without_pybullet(item: pytest.Item) -> Generator[None, object, object]:
    """Skip what needs PyBullet where that is missing: it has no wheels for Python 3.12."""
    try:
        return (yield)
    except MissingDependency as error:
        if find_spec('pybullet') is not None or 'pybullet' not in str(error):
            raise
        pytest.skip(str(error))


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_skipping_without_pybullet)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(_skipping_without_pybullet)
