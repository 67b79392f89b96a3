"""Tests of setting a machine up."""
