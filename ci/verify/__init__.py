"""Checking an artifact on disk against its manifest."""
