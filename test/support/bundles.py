# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Builders of finished runs and of bundles, sound and spoilt, for tests."""

from dataclasses import replace
import io
import json
import time
import zipfile

import numpy as np
import pytest

from metactl_ros.errors import BundleError
from metactl_ros.policy.bundle import SUMS, sums_of
from training.export import export_bundle
from training.learn.run import begin_run, load_presets, make_env, make_model, RunConfig


def small_run(steps=230, **changes):
    """Return a run that begins to learn after 60 steps, and is done in seconds."""
    hyper = replace(load_presets().robust, learning_starts=60, batch_size=16, buffer_size=300)
    run = RunConfig(
        preset='robust',
        model='incrt',
        heads=1,
        window=5,
        tau_z=2.0,
        seed=1,
        steps=steps,
        plant='rk4',
        device='cpu',
        hyper=hyper,
    )
    return replace(run, **changes)


def finished_run(folder, settings, **changes):
    """Make a run directory with random weights, as if it had been trained."""
    hyper = replace(load_presets().robust, buffer_size=100)
    run = small_run(**{'steps': 10, 'hyper': hyper} | changes)
    begin_run(folder, settings, run)
    env = make_env(settings, run)
    make_model(settings, run, env, folder / 'tensorboard').save(folder / 'model.zip')
    env.close()
    return folder


def made_bundle(tmp_path_factory, settings):
    """Return a sound bundle, made once per session; copy it before you spoil it."""
    folder = tmp_path_factory.getbasetemp()
    path = folder / 'made.metactl'
    if not path.exists():
        export_bundle(finished_run(folder / 'run_of_made', settings), path)
    return path


def refusal(load, path):
    """Return why a bundle is refused: with its path, what to do, and without delay."""
    began = time.monotonic()
    with pytest.raises(BundleError) as caught:
        load(path)
    assert time.monotonic() - began < 5.0
    message = str(caught.value)
    assert str(path) in message
    advice = ('copy the', 'xport', 'give the path', 'remove it', 'load a policy made for this')
    assert any(words in message for words in advice), message
    return message


def files_of(bundle):
    return {path.name: path.read_bytes() for path in bundle.iterdir()}


def reseal(bundle, **changes):
    """Write files under a valid seal, as its maker could; dots are underscores."""
    for name, data in changes.items():
        (bundle / name.replace('_', '.')).write_bytes(data)
    (bundle / SUMS).write_bytes(sums_of(files_of(bundle)))
    return bundle


def change_contract(bundle, key, value):
    """Set a dotted key of the contract, or remove it where the value is None."""
    contract = json.loads((bundle / 'contract.json').read_bytes())
    *sections, last = key.split('.')
    part = contract
    for section in sections:
        part = part[section]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return reseal(bundle, contract_json=json.dumps(contract).encode())


def golden_of(bundle):
    with np.load(bundle / 'golden.npz') as arrays:
        return arrays['window'], arrays['action']


def npz(save=np.savez, **arrays):
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def npy_claiming(shape):
    """Return an array file whose header promises more than it holds."""
    stream = io.BytesIO()
    header = {'descr': '<f4', 'fortran_order': False, 'shape': shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + bytes(64)


def zip_of(**members):
    """Return a zip of arbitrary bytes under the names that np.load looks for."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w') as archive:
        for name, data in members.items():
            archive.writestr(f'{name}.npy', data)
    return stream.getvalue()
