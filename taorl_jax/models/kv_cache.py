"""The key-value cache of one layer. Position p of a row is that token's, so there is no padding inside.

Positions lie in blocks of one size. A longer cache has more blocks, and attention sums within blocks before
it sums over them: so a row's numbers do not depend, to the bit, on how long the cache happens to be.
"""

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class LayerCache:
    """Keys and values of one layer.

    Keys are stored transposed: at decode's one query a row, attention over them is twice as fast on CPU.

    Attributes:
      keys_BxKxNxDxP, values_BxKxNxPxD: row, KV head, block, position in the block (and head dimension).
    """

    keys_BxKxNxDxP: jax.Array
    values_BxKxNxPxD: jax.Array

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.values_BxKxNxPxD.shape[2]

    @property
    def length(self) -> int:
        """Positions that a row can hold."""
        return self.blocks * self.values_BxKxNxPxD.shape[3]

    def write(self, rows_B, positions_BxT, keys_BxTxKxD, values_BxTxKxD) -> "LayerCache":
        """Stores new tokens; a position at or beyond `length` (padding, an idle row) is dropped."""
        rows = rows_B[:, None]
        block, offset = jnp.divmod(positions_BxT, self.values_BxKxNxPxD.shape[3])
        return LayerCache(
            self.keys_BxKxNxDxP.at[rows, :, block, :, offset].set(
                keys_BxTxKxD.astype(self.keys_BxKxNxDxP.dtype), mode="drop"
            ),
            self.values_BxKxNxPxD.at[rows, :, block, offset].set(
                values_BxTxKxD.astype(self.values_BxKxNxPxD.dtype), mode="drop"
            ),
        )

    def rows(self, rows_B) -> "LayerCache":
        """A copy of some rows (out-of-range ones are clamped)."""
        return jax.tree.map(lambda x: x.at[rows_B].get(mode="clip"), self)

    def resized(self, blocks: int) -> "LayerCache":
        """With more blocks, empty ones, or without its last ones."""
        more = max(blocks - self.blocks, 0)

        def resize(x):
            return jnp.pad(x[:, :, :blocks], [(0, more if axis == 2 else 0) for axis in range(x.ndim)])

        return jax.tree.map(resize, self)


def empty_cache(model, rows: int, blocks: int, block: int, dtype=jnp.float32) -> tuple[LayerCache, ...]:
    """Zeroed caches of `blocks * block` positions, one a layer, so that each is updated in place."""
    keys = (rows, model.kv_heads, blocks, model.head_dim, block)
    values = (rows, model.kv_heads, blocks, block, model.head_dim)
    return tuple(LayerCache(jnp.zeros(keys, dtype), jnp.zeros(values, dtype)) for _ in range(model.layers))
