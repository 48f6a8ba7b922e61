"""Runs the pure replica on real time, disk and network, and applies what it decides."""
