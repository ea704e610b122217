"""Threads: whose end is seen (`watched`), that repeat (`ticker`), that stop (`stopping`); their steps and failures."""
