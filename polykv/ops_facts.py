"""What every backend has beside its operations: what it can do, and where its arrays are. See `polykv.ops`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy.typing as npt

from polykv.types import Activations, Codec, MatrixType, ModelWeights, Stack


class Memory(Protocol):
    """Where the arrays of a backend are, and how much of that there is."""

    def fetch(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A result as a NumPy array: itself where it is one."""
        ...

    def begin_fetch(self, x: npt.NDArray[Any]) -> Callable[[], npt.NDArray[Any]]:
        """Begin to bring a result to NumPy; what is returned waits for it. What is begun later is not waited for."""
        ...

    def wait(self) -> None:
        """Until all that was begun is done; for those who measure time."""
        ...

    def memory(self) -> tuple[int, int] | None:
        """Bytes that are free, and all, of a device that has memory of its own; None: arrays are in the host's, whose
        pages come when they are needed."""
        ...

    def footprint(
        self,
        weights: ModelWeights,
        pairs: Sequence[tuple[Codec, Codec]],
        *,
        rows: int,
        logits: int,
        cells: int,
        activations: Activations,
    ) -> dict[str, int]:
        """Bytes that a session takes of the device beside K/V, by what they are for ("weights", "steps", "programs").

        pairs: types of K and V of every layer. rows: most rows of a step; logits: most of them that get logits at once;
        cells: most cells that a step reads.
        """
        ...

    def settle(self, weights: ModelWeights, steps: int) -> None:
        """Take all weights to the device, and memory of so many bytes for steps. Raises CapacityError."""
        ...

    def held(self, weights: ModelWeights, stack: Stack) -> dict[str, int]:
        """Bytes of the device that are taken now, summed over arrays: "weights", "graphs" (of the stack's steps),
        "steps"; and "driver", all that the driver says is taken, by others too."""
        ...

    def compiled(self) -> dict[str, float]:
        """What compiling took in this process: kernels "compiled", "seconds" of that, and kernels "from_disk"; empty
        where the backend does not count."""
        ...

    def compiling(self, begins: Callable[[], None], ends: Callable[[], None]) -> AbstractContextManager[Any]:
        """In it the two are called whenever the compilation of a kernel begins and ends; they may nest."""
        ...

    def runs_ahead(self) -> bool:
        """Whether operations return before they are done, so that it pays to begin the next ones meanwhile."""
        ...


class Limits(Protocol):
    """What a backend can do; every backend has these functions beside its operations. None = yes, else the reason."""

    def unusable(self) -> str | None:
        """Why nothing runs on this machine."""
        ...

    def preferred_block(self) -> int:
        """Cells of a block that the backend stores and reads well."""
        ...

    def supports_stages(self) -> str | None:
        """Whether cells may be exact first and coded in whole units later (docs/CENTERED.md)."""
        ...

    def supports_kv(self, k: Codec, v: Codec, head_dim: int, block_size: int) -> str | None:
        """Whether K and V of a layer can be stored in these types, and read by `attend`."""
        ...

    def supports_weight(self, kind: MatrixType) -> str | None:
        """Whether weights of this type can be multiplied and looked up."""
        ...
