# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may use; settings are the shipped ones."""

from dataclasses import replace
import signal

from hypothesis import settings as hypothesis_settings
import pytest

from metactl_ros.dynamics.friction import Friction
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
