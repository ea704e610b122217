"""A Python client for a pipeline that another process serves over HTTP.

client       `Client`
transaction  a transaction of several requests
errors       error responses as the errors of the pipeline
"""

from evertide.client.client import Client
from evertide.client.transaction import RemoteTransaction

__all__ = ["Client", "RemoteTransaction"]
