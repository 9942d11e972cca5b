# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Opens files that somebody names, without ever waiting for one.

A named pipe, a socket or a device may keep a reader for ever, or never end. They are told apart
by what was opened, not by what had been at the path a moment before.
"""

import errno
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


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, open for reading; where it would wait, its `read` returns None.

    Raises:
        OSError: If it cannot be opened, or is something else; `strerror` says what.
    """
    try:
        # A pipe without a writer is then opened at once; on a regular file it means nothing.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
        content = file.read(num_bytes + 1)  # not the size it tells: those of /proc tell zero
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
