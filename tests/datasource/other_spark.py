"""A separate Spark that reads a pipeline's storage and uses only the format's name.

    python -m tests.datasource.other_spark MASTER STORAGE [META]

It loads the table `things` and its view `counts` at the time on each input line, and prints a line of JSON: the
content, or the error.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


def session(master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.executor.memory", "512m")
    found: SparkSession = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


def answer(spark: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    try:
        things = spark.read.format("evertide").options(**options).load("things").select("id", "name").collect()
        counts = spark.read.format("evertide").options(**options).load("counts").collect()
        fits = Counter(row.name for row in things) == {row.name: row.n for row in counts}
        return {"ids": sorted(row.id for row in things), "fits": fits}
    except PySparkException as error:
        return {"error": str(error)}


def main(master: str, storage: str, meta: str = "") -> None:
    spark = session(master)
    options = {"storage": storage, "partition_bytes": "8000"} | ({"meta": meta} if meta else {})
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(spark, options | {"as_of": line.strip()})), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
