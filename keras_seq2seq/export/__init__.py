"""Writes trained runs in the formats that servers and phones load.

Each module writes one format and is imported by its own name, so that reading one does
not load what another needs. This is the only folder that imports TensorFlow.
"""
