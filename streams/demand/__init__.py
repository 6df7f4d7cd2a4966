"""Demand per pool, model and tier in windows, and its forecast."""
