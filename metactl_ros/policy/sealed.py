# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""A sealed directory: five files and nothing else, one of which has the SHA-256 of the others.

    NAME.metactl/
        card.md         what it is, for people
        contract.json   what it was made for
        golden.npz      inputs, and the actions they must give
        policy.onnx     the network
        SHA256SUMS      of the four above; `sha256sum -c SHA256SUMS` checks them, too

Each file is opened once, relative to the open directory, and read to memory: what was hashed is
what is parsed, whatever happens on the disk meanwhile. Nothing here blocks, follows a link or
parses. The seal proves that nothing changed on the way; it does not prove who made the bundle.
"""

from collections.abc import Callable, Mapping
import errno
import hashlib
from itertools import islice
import os
from pathlib import Path
import shutil
import stat
from typing import TypeVar

from metactl_ros.errors import MetactlError
from metactl_ros.files import sync

T = TypeVar('T')

SUMS = 'SHA256SUMS'
MEBIBYTE = 2**20
MAX_BYTES: dict[str, int] = {
    'card.md': MEBIBYTE,
    'contract.json': MEBIBYTE // 4,
    'golden.npz': 4 * MEBIBYTE,
    'policy.onnx': 16 * MEBIBYTE,
    SUMS: 4096,
}
"""Every file of a bundle, and how large it may be."""

# O_NONBLOCK: a FIFO in place of a file must be refused, not waited for.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class BundleError(MetactlError, RuntimeError):
    """A policy bundle is not there, damaged, or made for another robot."""


def read_sealed(path: Path) -> dict[str, bytes]:
    """Return the content of every file of a bundle, by name.

    Raises:
        BundleError: If anything is missing, unlisted, no plain file, too large or changed.
    """
    try:
        folder = os.open(path, _FLAGS | os.O_DIRECTORY)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise BundleError(
            f'{path}: not a bundle directory ({_reason(error)}); give the path of a '
            'NAME.metactl/, as python -m training.export writes it.'
        ) from None
    try:
        _check_names(path, _some_names(folder))
        files = {name: _read(path, folder, name) for name in MAX_BYTES}
    finally:
        os.close(folder)
    _check_sums(path, files)
    return files


def write_sealed(
    path: Path, files: Mapping[str, bytes], verify: Callable[[Path], T], *, may_replace: bool
) -> T:
    """Write a bundle that is complete or absent, and return what `verify` makes of it.

    It is written beside its place, verified there and then renamed. A bundle in its place is
    refused, or moved aside for the moment of the renaming; anything else is never replaced.
    """
    is_taken = os.path.lexists(path)
    if is_taken and not (may_replace and (path / SUMS).is_file()):
        raise BundleError(
            f'{path}: is there already; choose another name, or replace a bundle with --force.'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (path.with_name(f'.{path.name}.{os.getpid()}.{end}') for end in ('new', 'old'))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for name, data in {**files, SUMS: sums_of(files)}.items():
            (partial / name).write_bytes(data)
            sync(partial / name)
        verified = verify(partial)
        if is_taken:
            path.rename(old)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return verified


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """Return what SHA256SUMS must hold for these files, which may include itself."""
    lines = [
        f'{hashlib.sha256(data).hexdigest()}  {name}\n'
        for name, data in sorted(files.items())
        if name != SUMS
    ]
    return ''.join(lines).encode()


def _some_names(folder: int) -> set[str]:
    """Return the names in an open directory: all, or enough to say that there are too many."""
    with os.scandir(folder) as entries:
        return {entry.name for entry in islice(entries, len(MAX_BYTES) + 1)}


def _check_names(path: Path, found: set[str]) -> None:
    missing, unlisted = sorted(MAX_BYTES.keys() - found), sorted(found - MAX_BYTES.keys())
    if unlisted:
        raise BundleError(
            f'{path}: expected only {sorted(MAX_BYTES)}, found {unlisted[0]!r}, too; remove it.'
        )
    if missing:
        raise BundleError(f'{path}: {missing[0]} is missing; copy the whole bundle again.')


def _read(path: Path, folder: int, name: str) -> bytes:
    def opener(name: str, _: int) -> int:
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)

    try:
        file = open(name, 'rb', opener=opener)  # noqa: SIM115 - closed below
    except OSError as error:
        raise BundleError(
            f'{path / name}: cannot be read ({_reason(error)}); copy the bundle again.'
        ) from None
    most = MAX_BYTES[name]
    with file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise BundleError(
                f'{path / name}: expected a regular file, found something else; copy the bundle '
                'again.'
            )
        data = file.read(most + 1) if about.st_size <= most else b''
    if not 0 < len(data) <= most:
        found = 'none' if not data and about.st_size <= most else 'more'
        raise BundleError(
            f'{path / name}: expected 1 to {most} bytes, found {found}; copy the bundle again.'
        )
    return data


def _check_sums(path: Path, files: Mapping[str, bytes]) -> None:
    expected, found = sums_of(files), files[SUMS].splitlines()
    for line in expected.splitlines():
        if line not in found:
            name = line.split()[1].decode()
            raise BundleError(
                f'{path / name}: does not have the SHA-256 that {SUMS} states: it is damaged or '
                'was changed; copy the bundle again.'
            )
    if files[SUMS] != expected:
        raise BundleError(
            f'{path / SUMS}: expected one line per file, sorted, found more; copy the bundle '
            'again.'
        )


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):
        return str(error)
    # What O_NOFOLLOW says of any link.
    is_link = error.errno == errno.ELOOP
    return 'it is a symbolic link, or a loop of them' if is_link else os.strerror(error.errno or 0)
