"""Servers whose inference workers keep the tokens themselves: only coordinates of staged tokens come back (C1)."""
