"""Benches. They measure and report; they assert nothing, since machines differ."""
