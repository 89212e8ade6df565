"""Reporters: what they print and what becomes of it, when they run, and how they are kept in their cage.

The decisions are pure modules (`frame`, `contract`, `elim`, `schedule`, `table`); `supervisor` is the shell
around them that starts, feeds and ends processes. Imports: model, linux; psutil lazily.
"""
