"""Random quantized networks out of a pack: pteron against the exported graph in eager.

``support/random_quantized.py`` makes the pack, and checks as many more as there is time for.
"""

from __future__ import annotations

import pytest

from support.random_quantized import FLOWS, PACKED, distance, packed, room


@pytest.mark.parametrize("seed", PACKED)
def test_a_random_network_agrees_with_eager(seed: int) -> None:
    network = packed()[seed]
    assert distance(network) <= room(network)


def test_the_pack_has_every_flow() -> None:
    assert {network.flow for network in packed().values()} == set(FLOWS)
