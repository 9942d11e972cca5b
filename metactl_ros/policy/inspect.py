# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""`metactl inspect BUNDLE`: verify a bundle, and show its card."""

from pathlib import Path
import sys

from metactl_ros.policy.bundle import read_bundle
from metactl_ros.policy.verifier import GOLDEN_TOLERANCE


def run_inspect(path: Path) -> int:
    """Print the card of a bundle that is sound; return 0.

    Control characters are left out: a card must not give orders to a terminal.

    Raises:
        BundleError: If the bundle is not.
    """
    content = read_bundle(path)
    card = ''.join(sign for sign in content.card if sign.isprintable() or sign == '\n')
    sys.stdout.write(
        f'{card}\n'
        f'verified: complete, unchanged, golden vectors met to {GOLDEN_TOLERANCE}\n'
        f'SHA-256: {content.sha256}\n'
    )
    return 0
