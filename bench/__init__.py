"""Benchmarks beside a peer: `python -m bench.<room>.<name>`, run in this folder."""
