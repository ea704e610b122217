"""A pipeline that another process serves by HTTP, in Python."""

from evertide.client.client import Client
from evertide.client.transaction import RemoteTransaction

__all__ = ["Client", "RemoteTransaction"]
