# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Files that keep what was committed to them through a kill, a power cut and a full disk."""

from contextlib import suppress
import os
from pathlib import Path


class SyncedFile:
    """A new file that takes what is written to it when told to, and then all of it or nothing.

    commit:  | committed before | what waited | ending |      the next one writes over the ending

    Raises:
        OSError: If the file exists or cannot be made; from `commit`, if the disk fails.
    """

    def __init__(self, path: Path, ending: bytes) -> None:
        self.path = path
        self._ending = ending
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = 0
        self._waiting = bytearray()
        sync_folder(path.parent)

    def write(self, data: bytes) -> int:
        """Keep data for the next commit."""
        self._waiting += data
        return len(data)

    def tell(self) -> int:
        """Return where the next byte will be in the file."""
        return self._size + len(self._waiting)

    def flush(self) -> None:
        """Do nothing: who writes a file may ask for it, but only `commit` reaches the disk."""

    def commit(self) -> None:
        """Write what waits and the ending, and return when both are on the disk."""
        self._write_and_sync(bytes(self._waiting) + self._ending)
        self._size += len(self._waiting)
        self._waiting.clear()

    def finish(self) -> None:
        """Write what waits, which has an ending of its own, and close the file."""
        self._write_and_sync(bytes(self._waiting))
        os.close(self._descriptor)

    def cut_back(self) -> None:
        """Undo a commit or a finish that failed, and close the file.

        This needs no room on the disk: the ending was there before.
        """
        ending = self._ending if self._size else b''
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._size + len(ending))
            self._write_and_sync(ending)
        with suppress(OSError):
            os.close(self._descriptor)

    def _write_and_sync(self, data: bytes) -> None:
        num_written = 0
        while num_written < len(data):
            place = self._size + num_written
            num_written += os.pwrite(self._descriptor, data[num_written:], place)
        os.fsync(self._descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a crash leaves all of it or none."""
    partial = path.with_name(f'.{path.name}.partial')
    try:
        with partial.open('w', encoding='utf-8') as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
