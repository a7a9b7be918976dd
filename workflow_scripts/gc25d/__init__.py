"""gc25d: from game captures to a trained, verified, evaluated video world model."""

__version__ = "0.1.0"
