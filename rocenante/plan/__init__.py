"""Predict what a small cluster gains: cost model, calibration, fabric simulator."""
