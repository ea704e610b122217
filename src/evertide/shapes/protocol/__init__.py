"""Electric's protocol in our own types.

requests  parsing and validation of parameters, and answers to refused requests
offsets   positions in a snapshot or log
"""
