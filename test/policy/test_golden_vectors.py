# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors and cards that no robot loads, and by how much a golden vector may be missed."""

import numpy as np
import pytest
from support.bundles import golden_of, npy_claiming, npz, refusal, reseal, zip_of

W, F = 5, 11


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (lambda w, a: npz(window=w, action=a + 2e-6), 'found a difference of 2e-06'),
        (lambda w, a: npz(window=w, action=np.where(a == a[3, 3], np.nan, a)), 'finite'),
        (lambda w, a: npz(window=np.full_like(w, np.inf), action=a), 'finite'),
        (lambda w, a: npz(window=w, action=a[:, :-1]), 'of shapes'),
        (lambda w, a: npz(window=w, action=a[1:]), 'of shapes'),
        (lambda w, a: npz(window=w[:, 1:], action=a), 'of shapes'),
        (lambda w, a: npz(window=w[:0], action=a[:0]), 'at least one'),
        (lambda w, a: npz(window=w), "found ['window.npy']"),
        (lambda w, a: npz(window=w, action=a, more=a), "expected ['action.npy', 'window.npy']"),
        (lambda w, a: npz(np.savez_compressed, window=w, action=a), 'not compressed'),
        (lambda w, a: npz(window=w.astype(object), action=a), 'found object of shape'),
        (lambda w, a: npz(window=w.astype('S8'), action=a), 'found |S8 of shape'),
        (
            lambda w, a: npz(window=np.asfortranarray(w), action=a),
            'expected plain numbers by rows',
        ),
        (lambda w, a: npz(window=w[0, 0, 0], action=a), 'found float32 of shape ()'),
        (lambda w, a: b'PK\x03\x04 and no more', 'BadZipFile'),
        (lambda w, a: zip_of(window=npy_claiming((10**12, W, F)), action=b''), 'found 64 bytes'),
        (lambda w, a: zip_of(window=b'no array', action=b'at all'), 'magic string'),
        (lambda w, a: zip_of(window=b'\x93NUMPY\x03\x00', action=b''), 'version 1.0'),
    ],
)
def test_golden_vectors_that_prove_nothing_are_refused(spoilt, load, change, reason):
    data = change(*golden_of(spoilt))
    assert reason in refusal(load, reseal(spoilt, golden_npz=data))


def test_golden_vectors_may_differ_by_rounding(spoilt, load):
    window, action = golden_of(spoilt)
    load(reseal(spoilt, golden_npz=npz(window=window, action=action + 5e-7)))


def test_a_card_that_is_not_text_is_refused(spoilt, load):
    assert f'{spoilt / "card.md"}: cannot be used' in refusal(
        load, reseal(spoilt, card_md=b'\xff')
    )
