"""Identities: what must be equal between a file and a session, and how what differs is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import make_pool

from polykv.cache.identity import Identity
from polykv.errors import MismatchError


def test_codec_tables_and_versions_are_part_of_the_identity(plain: Any) -> None:
    mine = make_pool(plain, tier="q8_0/turbo3").identity
    assert any(mine.tables)
    for change, words in (
        ({"tables": ("/x",) * 3}, "codec table of layer 0"),
        ({"version": 9}, "cache format version"),
    ):
        raw = json.loads(mine.to_json()) | change
        with pytest.raises(MismatchError, match=words):
            mine.check(Identity.from_json(json.dumps(raw), "f"))
    mine.check(Identity.from_json(mine.to_json(), "f"))
    assert mine.hash_seed() != make_pool(plain).identity.hash_seed()


@pytest.mark.parametrize(
    ("tier", "old", "words"),
    [
        ("turbo3+c/turbo3", ("exact", "means"), "type of exact cells differs: the file has 'f16/f16'"),
        ("q8_0/turbo3,sink=4", ("exact", "means"), "type of exact cells differs: the file has 'f16/f16'"),
        ("turbo3+c/f16", ("exact", "means"), "type of the means of centered keys differs: the file has 'f16'"),
        ("turbo3+c/turbo3", ("means",), "type of the means of centered keys differs"),
    ],
)
def test_what_an_earlier_version_kept_exact_cells_and_means_in_is_named(
    plain: Any, tier: str, old: tuple[str, ...], words: str
) -> None:
    """Its files do not say it."""
    mine = make_pool(plain, tier=tier).identity
    raw = {name: value for name, value in json.loads(mine.to_json()).items() if name not in old}
    with pytest.raises(MismatchError, match=words):
        mine.check(Identity.from_json(json.dumps(raw), "f"))
    mine.check(Identity.from_json(mine.to_json(), "f"))


@pytest.mark.parametrize("tier", ["q8_0/turbo3", "f16", "f16,sink=4"])
def test_files_without_8_bit_cells_are_as_they_were(plain: Any, tier: str) -> None:
    assert not {"exact", "means"} & set(json.loads(make_pool(plain, tier=tier).identity.to_json()))
