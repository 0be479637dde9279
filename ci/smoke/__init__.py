"""The smoke test of an artifact: boot it, ask it something, prove that nothing is left behind."""
