"""Primitives: what features use of the core. About ten verbs on blocks, in a module or two each.

| verb | what it does | where |
|---|---|---|
| make | a tensor of a block, or of what a function makes of blocks of others; a block, overwritten | `make` |
| align | operands into one layout | `align`, by `rules` |
| map | a function on aligned blocks, with ``out=`` | `map` |
| move | a tensor into another layout | `align.relaid` |
| whole | an axis, or several, uncut | `whole` |
| reduce | shares of all devices to one result | `reduce`, `intervals` |
| scan | what comes before the block of each device | `scan` |
| rows | by number: fetch them from their owners, deliver them, ask about them | `rows` |
| assemble | blocks put together from intervals of an axis, of which what others have comes | `assemble`, by `edges` |
| regions | the boxes of a tensor that ranks choose by themselves | `regions` |
| views | a tensor that shares memory with another one, as NumPy says | `views` |
| exchange | what a feature describes itself, prepared once for calls that are alike | `exchanges` |
| small | what is small: gathered, looked up by one rank, computed by each and compared | `small`, `session` |

Nothing else above the core makes a tensor, agrees, or speaks with other ranks.
"""
