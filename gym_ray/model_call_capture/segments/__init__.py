"""Captures on object stores: immutable segments of many writers, without locks and without appends."""
