"""Connects to Spark's services as a process without the secret does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def has_endpoint(spark: SparkSession, port: int, name: str, host: str = "127.0.0.1") -> bool:
    """Whether the RPC service of another Spark at this port answers a question about the endpoint without the secret.
    Uses the JVM of this session.
    """
    packages = spark._jvm.org.apache.spark
    conf = packages.SparkConf(False).set("spark.app.id", "probe").set("spark.rpc.askTimeout", "20s")
    defaults = getattr(packages.SecurityManager, "$lessinit$greater$default$3")()
    security = packages.SecurityManager(conf, spark._jvm.scala.Option.empty(), defaults)
    probe = packages.rpc.RpcEnv.create("probe", "127.0.0.1", 0, conf, security, True)
    try:
        probe.setupEndpointRef(packages.rpc.RpcAddress(host, port), name)
    except Py4JJavaError:
        return False
    else:
        return True
    finally:
        probe.shutdown()
        probe.awaitTermination()
