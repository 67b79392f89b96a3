"""Carries out through the runtime what a plan or a termination asks for."""
