"""Network settings of Spark: for a new session, and a check of a session that the user created.

Spark's driver and block manager accept Java-serialized messages, so a process that can send them can run code.

1. With a local master, the driver listens on loopback. So do the master and the workers of a `local-cluster`, and the
   UI if the user enables it, because of `SPARK_LOCAL_IP`.
2. With any master, connections are authenticated, and encrypted if they leave the machine, unless Spark's
   configuration says otherwise. Spark creates the secret for local masters, YARN and Kubernetes; this module creates
   it for a `local-cluster`. For a standalone master, the user sets `spark.authenticate.secret`. No secret is ever on a
   command line.
3. XML in rows is untrusted, so the JVMs of a new session never read the DTD that a document names.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

REMEDY = (
    "Set spark.authenticate and spark.network.crypto.enabled to true in Spark's configuration, and on a standalone "
    "cluster spark.authenticate.secret for its master and workers too; for a local master, set spark.driver.host and "
    "spark.driver.bindAddress to 127.0.0.1 instead."
)

_LOOPBACK = "127.0.0.1"
_LOCAL_IP = "SPARK_LOCAL_IP"
_LOCAL_CLUSTER = "local-cluster["
_AUTHENTICATE = "spark.authenticate"
_SECRET = "spark.authenticate.secret"  # noqa: S105 - the name of a setting
_AUTHENTICATED = {_AUTHENTICATE: "true"}
_ENCRYPTED = {"spark.network.crypto.enabled": "true"}
_BOUND = {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
_EXECUTOR_JAVA = "spark.executor.extraJavaOptions"
_EXTERNAL_DTD = "javax.xml.accessExternalDTD"
_XML = {
    _EXTERNAL_DTD: "",
    # The parser of the JDK, which obeys that; another parser on the class path may not.
    "javax.xml.parsers.DocumentBuilderFactory": "com.sun.org.apache.xerces.internal.jaxp.DocumentBuilderFactoryImpl",
}


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master == "local" or master.startswith(("local[", _LOCAL_CLUSTER))


@contextmanager
def bind_to_loopback(master: str) -> Iterator[None]:
    """A JVM that is started in the block for a local master listens on loopback."""
    if not is_local(master):
        yield
        return
    before = os.environ.get(_LOCAL_IP)
    os.environ[_LOCAL_IP] = _LOOPBACK
    try:
        yield
    finally:
        del os.environ[_LOCAL_IP]
        if before is not None:
            os.environ[_LOCAL_IP] = before


def make_network_settings(jvm: Any, master: str) -> dict[str, str]:
    """Settings for a new session in this JVM. They may contain a secret, so pass them through py4j only."""
    for name, value in _XML.items():
        jvm.java.lang.System.setProperty(name, value)
    configured = jvm.org.apache.spark.SparkConf()
    wanted = _AUTHENTICATED if is_local(master) else _AUTHENTICATED | _ENCRYPTED
    chosen = {name: value for name, value in wanted.items() if not configured.contains(name)}
    if is_local(master):
        chosen |= _BOUND
    if master.startswith(_LOCAL_CLUSTER) and not configured.contains(_SECRET):
        chosen[_SECRET] = jvm.org.apache.spark.util.Utils.createSecret(configured)
    java = " ".join(f"-D{name}={value}" for name, value in _XML.items())
    chosen[_EXECUTOR_JAVA] = f"{configured.get(_EXECUTOR_JAVA, '')} {java}".strip()
    return chosen


def find_exposure(conf: Mapping[str, str]) -> str | None:
    """Why other processes could control this session's Spark; None if they cannot."""
    if conf.get(_AUTHENTICATE, "false").lower() == "true":
        return None
    address = conf.get("spark.driver.bindAddress") or conf.get("spark.driver.host", "")
    if is_local(conf.get("spark.master", "")) and _is_loopback(address):
        return None
    return (
        f"Spark's driver listens at {address} without authentication (spark.authenticate is not set), so any process "
        "that reaches this address can stop the driver or run code in it"
    )


def has_external_dtds(spark: Any) -> bool:
    """Whether XML in rows can make a JVM of this session read a file or a URL."""
    if spark._jvm.java.lang.System.getProperty(_EXTERNAL_DTD) != "":
        return True
    conf = dict(spark.sparkContext.getConf().getAll())
    is_one_jvm = is_local(conf["spark.master"]) and not conf["spark.master"].startswith(_LOCAL_CLUSTER)
    return not is_one_jvm and f"-D{_EXTERNAL_DTD}=" not in conf.get(_EXECUTOR_JAVA, "").split()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"
