"""Electric's protocol in our own types.

requests  parsing and validation of parameters
offsets   positions in a snapshot or log
refusals  answers to refused requests
"""
