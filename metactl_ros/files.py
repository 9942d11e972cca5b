# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Files: opened without ever waiting for one, and written so that a crash leaves them whole.

A named pipe, a socket or a device may block a reader for ever, or never end. They are recognised
by what was opened, not by what had been at the path a moment before.
"""

from contextlib import suppress
import errno
import json
import os
from pathlib import Path
import stat
from typing import BinaryIO

LARGEST_HOLE = 2**26
"""Bytes; what was written has none, what was copied may have those of its zeros."""
KINDS = {
    stat.S_IFDIR: 'a folder',
    stat.S_IFIFO: 'a named pipe',
    stat.S_IFSOCK: 'a socket',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
}


def open_regular(path: Path, folder: int | None = None) -> BinaryIO:
    """Return a regular file, open for reading; where it would wait, its `read` returns None.

    Args:
        path: Of the file.
        folder: An open directory that the path is relative to; then no link is followed.

    Raises:
        OSError: If it cannot be opened, or is something else; `strerror` names it.
    """
    try:
        # A pipe without a writer is then opened at once; on a regular file it means nothing.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        flags |= 0 if folder is None else os.O_NOFOLLOW
        descriptor = os.open(path, flags, dir_fd=folder)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), repr(path)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, 'is a socket, not a regular file', str(path)) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        found = KINDS.get(kind, 'something else')
        raise OSError(errno.EINVAL, f'is {found}, not a regular file', str(path))
    return os.fdopen(descriptor, 'rb')


def read_at_most(path: Path, num_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: If it cannot be read, is something else, or is larger.
    """
    with open_regular(path) as file:
        content = file.read(num_bytes + 1)  # not its size: files of /proc have size zero
    if content is None:  # one of /proc that would wait for more to come
        raise OSError(errno.EAGAIN, 'has nothing to read', str(path))
    if len(content) > num_bytes:
        raise OSError(errno.EFBIG, f'is larger than {num_bytes} bytes', str(path))
    return content


def require_no_hole(file: BinaryIO) -> None:
    """Refuse a file of which large parts were never written: it takes hours, but no room.

    Raises:
        OSError: If there is such a part.
    """
    size = os.fstat(file.fileno()).st_size
    here, hole = file.tell(), 0
    while (hole := os.lseek(file.fileno(), hole, os.SEEK_HOLE)) < size:
        try:
            end = os.lseek(file.fileno(), hole, os.SEEK_DATA)
        except OSError:  # there are no data after it
            end = size
        if end - hole > LARGEST_HOLE:
            raise OSError(errno.EINVAL, f'has a hole of {end - hole} bytes', file.name)
        hole = end
    file.seek(here)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file, and its folder, so that a crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
    try:
        partial.write_text(text, encoding='utf-8')
        sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write JSON so that a crash leaves the old file or the new one, never a part.

    NaN and infinity are refused: they are not JSON, and a result that holds one is not a result.
    """
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SyncedFile:
    """A new file that takes what is written to it with `commit`, all of it or nothing.

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
        sync(path.parent)

    def write(self, data: bytes) -> int:
        """Keep data for the next commit."""
        self._waiting += data
        return len(data)

    def tell(self) -> int:
        """Return where the next byte will be in the file."""
        return self._size + len(self._waiting)

    def flush(self) -> None:
        """Do nothing: an MCAP writer calls it, but only `commit` reaches the disk."""

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
