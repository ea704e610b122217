"""How each operator of a circuit is maintained.

explain         explains a circuit
explanation     the result, as text and JSON
diagrams        the result as Mermaid and DOT
"""
