"""Primitives, by which features use the core: about ten verbs on blocks, in a module or two each.

| verb | what it does | where |
|---|---|---|
| make | a tensor from a block, or from a function of the blocks of others; a block, overwritten | `make` |
| align | operands into one layout | `align`, by `rules` |
| map | a function on aligned blocks, with ``out=`` | `map` |
| move | a tensor into another layout | `align.relaid` |
| whole | an axis, or several, uncut | `whole` |
| reduce | shares of all devices to one result | `reduce`, `intervals` |
| scan | a prefix scan over the blocks | `scan` |
| rows | by number: fetch them from their owners, deliver them, ask about them | `rows` |
| assemble | blocks assembled from intervals of an axis; intervals that others hold move | `assemble`, by `edges` |
| regions | the boxes of a tensor that ranks choose by themselves | `regions` |
| views | a tensor that shares memory with another one, as NumPy says | `views` |
| exchange | an exchange that a feature describes itself, prepared once for equal calls | `exchanges` |
| small | small data: gathered, broadcast from one rank, or computed by each and compared | `small`, `session` |

Nothing else above the core makes a tensor, agrees, or speaks with other ranks.
"""
