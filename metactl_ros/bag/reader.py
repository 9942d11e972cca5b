# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The messages of a bag as bytes, whoever wrote it and however it ended.

    a folder with metadata.yaml     rosbag2, MCAP or sqlite3
    a folder without                a recording that was not ended
    a file .mcap or .db3            without its folder

MCAP is read from the front with all checksums on, until it ends or breaks (`mcap_messages.py`);
sqlite3, which has none, after a check of its structure (`sqlite_messages.py`). What was lost, or
may have been, is said. Bags come from anywhere: no file is waited for, and none is a bomb.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
import stat
from typing import Any

from metactl_ros.bag.raw_messages import BagError, Gathered, RawMessage
from metactl_ros.config import MOST_TEXT, shown
from metactl_ros.errors import ConfigError, MissingDependency
from metactl_ros.regular_file import KINDS, read_at_most
from metactl_ros.strict_yaml import MAX_BYTES, parse_yaml

try:
    from metactl_ros.bag.mcap_messages import read_mcap
except ImportError as error:
    raise MissingDependency(
        "reading bags needs mcap; run: pip install 'metactl_ros[sim]'"
    ) from error
from metactl_ros.bag.sqlite_messages import read_sqlite

__all__ = ['BagContent', 'BagError', 'RawMessage', 'read_bag']

SUFFIXES = ('.mcap', '.db3')
NOT_COMPRESSED = ('', 'none', 'null', '~')
MOST_PROBLEMS = 20
"""Of the rest only the number is told."""


@dataclass(frozen=True, slots=True)
class BagContent:
    """What could be read."""

    messages: list[RawMessage]
    """The wanted ones, by log time; of equal times in the order of the file."""
    counts: Counter[str]
    """Messages per topic, wanted or not."""
    problems: tuple[str, ...]
    """Why it is not the whole recording; empty if it is."""


def read_bag(path: Path, is_wanted: Callable[[str], bool]) -> BagContent:
    """Return the messages of all topics that are wanted.

    Args:
        path: A folder or a file, see the module's text.
        is_wanted: Whether a topic is, by its full name.

    Raises:
        BagError: If there is nothing that could be a bag, or it holds more than it can.
    """
    problems: list[str] = []
    kind = _kind(path)
    information = _read_information(path, problems) if kind == stat.S_IFDIR else None
    files = _files(path, kind, information, problems)
    gathered = Gathered(path, sum(map(_size, files)), is_wanted)
    for file in files:
        read = read_mcap if file.suffix == '.mcap' else read_sqlite
        try:
            read(file, gathered, problems)
        except BagError:
            raise
        except Exception as error:  # whatever a parser raises on broken bytes
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            problems.append(
                f'{_cut(file.name)}: breaks off after {gathered.num_messages} messages '
                f'({type(error).__name__}: {str(why)[:MOST_TEXT]})'
            )
    if information is not None:
        expected, found = information.get('message_count'), gathered.num_messages
        if expected != str(found):
            problems.append(f'metadata.yaml: says {_cut(expected)} messages, {found} were found')
    for topic, count in gathered.num_too_large.items():
        problems.append(f'{_cut(topic)}: {count} messages are too large, left out')
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS:] = [f'and {len(problems) - MOST_PROBLEMS} problems more']
    gathered.messages.sort(key=lambda message: message.log_time_ns)
    return BagContent(gathered.messages, gathered.counts, tuple(problems))


def _kind(path: Path) -> int:
    """Return what is at a path, as stat has it; zero if nothing is."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):  # nothing, a loop of links, a name that none can have
        return 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _cut(text: object) -> str:
    """Return a text of a bag for a message: not too long, and nothing that steers a terminal."""
    is_harmless = isinstance(text, str) and len(text) < MOST_TEXT and text.isprintable()
    return str(text) if is_harmless else shown(text)


def _read_information(folder: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return what metadata.yaml says, all in texts, or None with a problem."""
    file = folder / 'metadata.yaml'
    if not _kind(file):
        problems.append('metadata.yaml: is missing, the recording was not ended')
        return None
    try:
        content = parse_yaml(read_at_most(file, MAX_BYTES).decode('utf-8'), is_all_text=True)
        information = content['rosbag2_bagfile_information']
        compression = information.get('compression_mode', '')
        custom = information.get('custom_data')
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        problems.append(f'metadata.yaml: cannot be read ({str(why)[:MOST_TEXT]})')
        return None
    except (LookupError, TypeError, AttributeError):  # a list or a text in place of a table
        problems.append('metadata.yaml: cannot be read (it is not that of a bag)')
        return None
    if not isinstance(compression, str) or compression.lower() not in NOT_COMPRESSED:
        raise BagError(
            f'{folder}: is compressed by {_cut(information.get("compression_format"))}; convert '
            'it with ros2 bag convert, or read its MCAP file compressed by chunks.'
        )
    if isinstance(custom, dict) and 'stopped' in custom:
        problems.append(f'metadata.yaml: the recording stopped early ({_cut(custom["stopped"])})')
    return dict(information)


def _files(
    path: Path, kind: int, information: dict[str, Any] | None, problems: list[str]
) -> list[Path]:
    """Return the files of a bag, in their order.

    Raises:
        BagError: If there are none.
    """
    if kind == stat.S_IFREG and path.suffix in SUFFIXES:
        return [path]
    if kind != stat.S_IFDIR:
        found = KINDS.get(kind, 'another file') if kind else 'nothing'
        raise BagError(
            f'{path}: expected a bag, a folder or a file {" or ".join(SUFFIXES)}; found {found}.'
        )
    try:
        present = sorted(
            (file for file in path.iterdir() if file.suffix in SUFFIXES),
            key=lambda file: (len(file.name), file.name),  # _10 is after _9
        )
    except OSError as error:
        raise BagError(f'{path}: cannot be read ({error.strerror}); give another.') from None
    if not present:
        raise BagError(f'{path}: expected a bag, found no file {" or ".join(SUFFIXES)} in it.')
    if information is None:
        return present
    named = _names(information.get('relative_file_paths'))
    names = sorted(file.name for file in present)
    if named != names:
        problems.append(f'metadata.yaml: names the files {shown(named)}, found {shown(names)}')
    return present


def _names(paths: object) -> list[str]:
    """Return the names of files, sorted; whatever is no path is nobody's."""
    entries = paths if isinstance(paths, list) else []
    return sorted(Path(entry).name for entry in entries if isinstance(entry, str))
