"""Steps of few rows over codes and exact cells (docs/CENTERED.md): what such a layer does besides, without the host.

    kv_append_both            K and V to exact cells, Q as it is
    kv_mean, kv_seal          units that are complete, if there are any, K and then V
    turned                    Q to the space of the codes, where it is another one
    attend, merge             over codes; and over exact cells

Results of both become one on their way out of the space of the values (attention_outputs.cu).
"""

from __future__ import annotations

from dataclasses import dataclass

from polykv.fast.cuda.attend_config import Config
from polykv.fast.cuda.attend_run import Step, run
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.forms import vector_room
from polykv.fast.cuda.kv import own
from polykv.fast.cuda.kv_seal import kv_seal
from polykv.fast.cuda.workspace import Workspace
from polykv.types import F32, AttentionWeights, KVArena, LayerKV, Seals

TURN_WARPS = 4


@dataclass(frozen=True, eq=False)
class Way:
    """How attention over one kind of cells is cut, and compiled."""

    step: Step
    made: Config


@dataclass(frozen=True, eq=False)
class Attended:
    """Results [n, H, dims] in the space of the values, and their lse [n, H]."""

    out: F32
    lse: F32


def attend_rows(q: F32, w: AttentionWeights, kv: LayerKV, way: Way, room: Workspace, name: str) -> Attended:
    """Attention of queries [n, H, dims] in the space of the keys."""
    found = Attended(room.take(f"attended {name}", q.shape), room.take(f"lse {name}", q.shape[:2]))
    how = {"scale": w.scale, "window": w.window, "softcap": w.softcap}
    run(way.step, way.made, q, kv.k, kv.v, **how, out=(found.out, found.lse))  # type: ignore[arg-type]
    return found


def attend_exact(
    q: F32,
    w: AttentionWeights,
    kv: LayerKV,
    exact: LayerKV,
    seals: Seals | None,
    ways: tuple[Way, Way],
    room: Workspace,
) -> tuple[Attended, Attended]:
    """The same over codes and over exact cells, of queries in the space of exact keys; codes complete units first."""
    if seals is not None:
        kv_seal(kv.k, exact.k, seals)
        kv_seal(kv.v, exact.v, seals)
    turned = _turned(q, kv.k, room) if kv.k.codec.rotated else q
    return attend_rows(turned, w, kv, ways[0], room, "codes"), attend_rows(q, w, exact, ways[1], room, "exact")


def _turned(q: F32, k: KVArena, room: Workspace) -> F32:
    """Queries in the space of the codes of k."""
    a, (n, heads, dims) = own(k), q.shape
    y: F32 = room.take("turned", q.shape)
    arguments = (y, q, *a.form.tables, n * heads, dims)
    shared = TURN_WARPS * vector_room(a.form.sizes[-2])
    launch(kernel("kv_turn.cu", "turned"), (-(-n * heads // TURN_WARPS),), (32 * TURN_WARPS,), arguments, shared=shared)
    return y
