"""A Python client for a pipeline that another process serves over HTTP."""

from evertide.client.client import Client
from evertide.client.transaction import RemoteTransaction

__all__ = ["Client", "RemoteTransaction"]
