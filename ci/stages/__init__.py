"""Stages: what is built, their cache, and the runner that connects both with an engine."""
