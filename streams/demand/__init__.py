"""Demand per pool and tier in windows, and its forecast."""
