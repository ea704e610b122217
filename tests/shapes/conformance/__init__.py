"""Runs the tests of Electric's TypeScript client, which need a server, against Evertide.

    git clone https://github.com/electric-sql/electric
    python -m tests.shapes.conformance electric

The tests are not part of this repository, nor of the client's npm package, so the command takes a checkout.

__main__  copies the tests, runs them, and compares the results with `expected.json`
server    a server that follows the tables that the tests create in PostgreSQL
"""
