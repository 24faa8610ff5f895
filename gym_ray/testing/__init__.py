"""Fakes and conformance suites for tests, shipped with the package."""
