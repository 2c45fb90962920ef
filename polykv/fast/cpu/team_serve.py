"""How workers find a job: kernels on the mailbox of `team`.

    state @0         OPEN while a job may be joined, plus the number of workers inside
    job @64          number of the job, then its body, argument, workers, desk and leader's processor, 8 bytes each

The leader writes the job, opens it, works on it like everybody, closes it when its own share of the phases is over
(which means that all chunks are done) and waits until nobody is inside. A worker that comes too late finds the job
closed and goes away; nobody waits for a worker that has not come.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.entry import invoke
from polykv.fast.cpu.simd import get_i64, put_i64
from polykv.fast.cpu.team_atomic import atomic_add, atomic_load, pause, processor, rest

OPEN = 1 << 32
NUMBER, BODY, ARGUMENT, WORKERS, DESK, PROCESSOR = 64, 72, 80, 88, 96, 104
MAILBOX = 128


@kernel()
def lead(mail: int, body: int, argument: int, workers: int, desk: int) -> None:
    """Do a job with whoever comes to help: body(argument, desk, worker, workers) in every worker."""
    if workers == 1:
        invoke(body, (argument, desk, 0, 1))
        return
    put_i64(mail + BODY, body)
    put_i64(mail + ARGUMENT, argument)
    put_i64(mail + WORKERS, workers)
    put_i64(mail + DESK, desk)
    put_i64(mail + PROCESSOR, processor())
    put_i64(mail + NUMBER, get_i64(mail + NUMBER) + 1)
    atomic_add(mail, OPEN)
    invoke(body, (argument, desk, 0, workers))
    atomic_add(mail, -OPEN)
    looks = 0
    while atomic_load(mail) != 0:
        rest(looks)
        looks += 1


@kernel()
def serve(mail: int, worker: int, patience: int) -> Any:
    """Take part in jobs until none came for `patience` looks: -1. Or the leader's processor, when that is this one."""
    looks, last, here = 0, 0, np.int64(-1)
    while looks < patience:
        if atomic_load(mail) >= OPEN:
            crowded = False
            if atomic_add(mail, 1) >= OPEN and get_i64(mail + NUMBER) != last and worker < get_i64(mail + WORKERS):
                last, looks = get_i64(mail + NUMBER), 0
                here = processor()
                crowded = here >= 0 and here == get_i64(mail + PROCESSOR)
                if not crowded:
                    invoke(
                        get_i64(mail + BODY),
                        (get_i64(mail + ARGUMENT), get_i64(mail + DESK), worker, get_i64(mail + WORKERS)),
                    )
            atomic_add(mail, -1)
            if crowded:
                return here
        # No yielding: on a busy machine that gives the core away for milliseconds. Sleeping is the better end.
        pause()
        looks += 1
    return np.int64(-1)
