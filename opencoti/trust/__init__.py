"""Which keys are trusted, and what their signatures must say. Pure: bytes in, verified types out.

`comment` is the grammar of trusted comments, `keys` a list of accepted keys, `document` the file of a root,
`chain` the walk from one root to the next, `memory` what was seen before, `checks` the single checks against
what was asked, `shipped` the root installed with this package (`root-N.json` beside this file; the highest N
counts). `opencoti.policy` puts them in order. Importing the package loads none of them.
"""
