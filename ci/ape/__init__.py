"""The ape lane: upstream's llamafile built with cosmocc, and its GPU libraries by upstream's own scripts."""
