# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Kept values and how they are compared: the one rule of all golden tests."""

import hashlib
import json
from pathlib import Path
import subprocess

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / 'test' / 'golden'

RTOL = 1e-9
"""By how much a float may differ from the kept one. 0.0: equal to the bit.

A change that only moves code leaves it at 0.0. One that changes the order of arithmetic may raise
it to 1e-9, and no further: relative to the largest number of an array's last axis or of a list, or
to the number itself. Whoever raises it writes the goldens anew afterwards and sets it back to 0.0.
"""

ELSEWHERE = 1e-4
"""In place of RTOL on machines whose processor, NumPy or onnxruntime rounds otherwise than those
that the goldens were made with; each file keeps a sample of their `rounding`."""

LEFT_OUT = 'left out'
"""Stands for a value that changes from run to run; its key is compared all the same."""


def array_difference(kept, found, rtol):
    """Return what is wrong with an array, in words; empty if nothing is."""
    kept, found = np.asarray(kept), np.asarray(found)
    if (kept.shape, kept.dtype) != (found.shape, found.dtype):
        return f'{found.dtype} of shape {found.shape}, kept {kept.dtype} of shape {kept.shape}'
    if kept.tobytes() == found.tobytes():
        return ''
    if kept.dtype.kind != 'f':
        where = tuple(int(i) for i in np.argwhere(kept != found)[0])
        return f'{found[where]!r} at {where}, kept {kept[where]!r}'
    if not np.array_equal(np.isfinite(kept), np.isfinite(found)):
        return 'finite where the kept one is not, or the other way round'
    apart = np.abs(np.nan_to_num(found) - np.nan_to_num(kept))
    over = tuple(range(kept.ndim - 1))
    scale = np.maximum(np.abs(np.nan_to_num(kept)).max(axis=over), np.finfo(kept.dtype).tiny)
    worst = float((apart / scale).max())
    return '' if 0.0 < rtol >= worst else f'differs by {worst:.2g} of the largest'


def json_differences(kept, found, rtol, at=''):
    """Yield what is wrong with a JSON value: where, and in words."""
    if kept == LEFT_OUT:
        return
    if isinstance(kept, dict) and isinstance(found, dict):
        if kept.keys() != found.keys():
            yield f'{at}: keys {sorted(kept.keys() ^ found.keys())} are not in both'
        for key in kept.keys() & found.keys():
            yield from json_differences(kept[key], found[key], rtol, f'{at}/{key}')
    elif isinstance(kept, list) and isinstance(found, list):
        if len(kept) != len(found):
            yield f'{at}: {len(found)} entries, kept {len(kept)}'
        elif kept and all(isinstance(entry, float) for entry in (*kept, *found)):
            wrong = array_difference(np.array(kept)[:, None], np.array(found)[:, None], rtol)
            yield from [f'{at}: {wrong}'] if wrong else []
        else:
            for index, pair in enumerate(zip(kept, found, strict=True)):
                yield from json_differences(*pair, rtol, f'{at}/{index}')
    elif type(kept) is not type(found):
        yield f'{at}: {found!r}, kept {kept!r}'
    elif isinstance(kept, float):
        wrong = array_difference(np.array([kept]), np.array([found]), rtol)
        yield from [f'{at}: {found!r}, kept {kept!r}: {wrong}'] if wrong else []
    elif kept != found:
        yield f'{at}: {found!r}, kept {kept!r}'


def without(value, names):
    """Return a JSON value in which everything of these names is left out."""
    if isinstance(value, dict):
        return {k: LEFT_OUT if k in names else without(v, names) for k, v in value.items()}
    return [without(entry, names) for entry in value] if isinstance(value, list) else value


def digest(*arrays):
    """Return the SHA-256 of arrays: their bits, types and shapes."""
    found = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        found.update(f'{array.dtype.str} {array.shape}'.encode())
        found.update(array.tobytes())
    return found.hexdigest()


def commit():
    """Return the commit that goldens are made with; a plus if the code differs from it."""

    def git(*words):
        done = subprocess.run(
            ['git', '-C', ROOT, *words], capture_output=True, check=True, text=True
        )
        return done.stdout.strip()

    is_changed = git('status', '--porcelain', '--', 'metactl_ros', 'training', 'config')
    return git('rev-parse', '--short=12', 'HEAD') + '+' * bool(is_changed)


def write_json(name, value):
    text = json.dumps(value, indent=1, allow_nan=False)
    (FOLDER / name).write_text(f'{text}\n', encoding='utf-8')


def read_json(name):
    return json.loads((FOLDER / name).read_text(encoding='utf-8'))
