"""The text of a release: a generated part between two markers, and what people write around it."""
