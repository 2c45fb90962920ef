"""Model files in large pages.

Decoding reads every weight once per token. In pages of 4 KiB the processor translates an address per 4 KiB and its
prefetch stops at their borders; in pages of 2 MiB two cores read 1.3 to 1.5 times as fast (docs/PERFORMANCE.md). Linux
fills the page cache with large pages when a mapping asks for them before the data are read, on file systems that can
(ext4 since Linux 6.16, XFS); what is in the page cache already stays as it is. So mappings ask, and files
that were just written are given up by the page cache, to be read again as they should be.

Everything here is advice: where it is not understood, nothing changes but speed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from pathlib import Path


def ask_for_large_pages(mapping: mmap.mmap) -> None:
    """Call before the first access to a mapped file."""
    if sys.platform == "linux":
        # EINVAL: a kernel without large pages.
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)


def forget(path: Path) -> None:
    """Write a file out and drop it from the page cache, but for pages that some process has mapped.

    For a file just written or checksummed: ordinary writes and reads fill the cache with small pages. The next load
    reads the disk once more.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError), path.open("rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def give_back(mapping: mmap.mmap, first: int, last: int) -> None:
    """Take the pages of bytes first .. last - 1 out of this process's memory; a later access finds them again. For
    files, and mappings that nobody writes to, only."""
    if sys.platform == "linux":
        # Neighbours that share a page lose it too: whole pages only, and nothing is lost.
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_DONTNEED, start, last - start)


def in_large_pages(path: Path) -> tuple[int, int]:
    """(bytes in large pages, bytes resident) of this process's mappings of a file; (0, 0) where that is not told."""
    large = resident = 0
    ours = False
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/smaps").read_text().splitlines():
            fields = line.split(None, 5)
            if not fields[0].endswith(":"):
                ours = len(fields) == 6 and fields[5] == str(path.resolve())
            elif ours and fields[0] == "Rss:":
                resident += 1024 * int(fields[1])
            elif ours and fields[0] == "FilePmdMapped:":
                large += 1024 * int(fields[1])
    return large, resident
