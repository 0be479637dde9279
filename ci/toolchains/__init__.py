"""Toolchains: what they are made of, their locks, and how they get onto this machine or into an image."""
