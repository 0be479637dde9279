"""The patch series: read, judged, applied strictly, and captured from edits."""
