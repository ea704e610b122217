"""Access control: which HTTP requests a server accepts, from whom, and how much memory and time each may take.

listen_options  tokens, TLS, hosts and limits of a server, together
access          the tokens that a server knows, and warnings for restrictions that match no collection
token           a token: name, role, digest, restriction
tokens_file     tokens from a file and from the environment
roles           the role that each address needs
gate            admits or refuses each request
hosts           refuses requests that a page of another site causes in a browser
origins         lets pages of listed origins use the API
tls             certificate and key of the server
connections     limits of connections and timeouts of clients
body_memory     the memory that the bodies of all requests may take
"""

from evertide.server.access.access import Access
from evertide.server.access.gate import Gate
from evertide.server.access.listen_options import ListenOptions
from evertide.server.access.roles import ROLES, Rule
from evertide.server.access.tls import Tls
from evertide.server.access.token import Role, Token

__all__ = ["ROLES", "Access", "Gate", "ListenOptions", "Role", "Rule", "Tls", "Token"]
