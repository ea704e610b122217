"""Who may do what by HTTP: tokens with roles, and the gate that every request passes.

`token` says what a token is, `tokens_file` where tokens come from, `roles` which role each address needs, `gate`
decides. `listening` is how a server listens: tokens, TLS, hosts and limits together.
"""

from evertide.server.access.access import Access
from evertide.server.access.gate import Gate
from evertide.server.access.listening import Listening
from evertide.server.access.roles import ROLES, Rule
from evertide.server.access.tls import Tls
from evertide.server.access.token import Role, Token

__all__ = ["ROLES", "Access", "Gate", "Listening", "Role", "Rule", "Tls", "Token"]
