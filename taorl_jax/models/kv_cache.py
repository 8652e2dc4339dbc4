"""The key-value cache of one layer. Slot s of a row holds position s, so there is no padding inside."""

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class LayerCache:
    """Keys and values of one layer.

    Keys are stored transposed: at decode's one query a row, attention over them is twice as fast on CPU.

    Attributes:
      keys_BxKxDxS, values_BxKxSxD: row, KV head, position (and head dimension).
    """

    keys_BxKxDxS: jax.Array
    values_BxKxSxD: jax.Array

    @property
    def length(self) -> int:
        """Positions that a row can hold."""
        return self.values_BxKxSxD.shape[2]

    def write(self, rows_B, positions_BxT, keys_BxTxKxD, values_BxTxKxD) -> "LayerCache":
        """Stores new tokens; a position at or beyond `length` (padding, an idle row) is dropped."""
        rows = rows_B[:, None]
        return LayerCache(
            self.keys_BxKxDxS.at[rows, :, :, positions_BxT].set(
                keys_BxTxKxD.astype(self.keys_BxKxDxS.dtype), mode="drop"
            ),
            self.values_BxKxSxD.at[rows, :, positions_BxT].set(
                values_BxTxKxD.astype(self.values_BxKxSxD.dtype), mode="drop"
            ),
        )

    def rows(self, rows_B) -> "LayerCache":
        """A copy of some rows (out-of-range ones are clamped)."""
        return jax.tree.map(lambda x: x.at[rows_B].get(mode="clip"), self)


def empty_cache(model, rows: int, length: int, dtype=jnp.float32) -> tuple[LayerCache, ...]:
    """Zeroed caches, one a layer; layers are separate arrays so that each is updated in place."""
    keys = (rows, model.kv_heads, model.head_dim, length)
    values = (rows, model.kv_heads, length, model.head_dim)
    return tuple(LayerCache(jnp.zeros(keys, dtype), jnp.zeros(values, dtype)) for _ in range(model.layers))
