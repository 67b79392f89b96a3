"""Recordings of agents in virtual time, and their replays."""
