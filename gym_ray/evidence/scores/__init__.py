"""Figures over many scores, for whoever scores and whoever sums up; nothing here reads or writes files."""
