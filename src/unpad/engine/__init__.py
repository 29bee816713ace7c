"""Engines that run programs, and the one door that chooses between them."""
