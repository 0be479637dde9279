"""Assembling artifacts: the zip writer for executables, the embedded index, the manifest and its sidecar."""
