"""Settings of Spark that can change the result of a plan over the same rows (I15).

Settings that change how a query is *parsed* (ordinals in GROUP BY, double quotes, case of names) are not listed, since
they change the plan. Nor are settings that only change how a plan is executed.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from evertide.plan.catalyst.walk import read_map

RESULT_SETTINGS = MappingProxyType(
    {
        "spark.sql.ansi.enabled": "an overflow or a bad cast is an error, or NULL",
        "spark.sql.session.timeZone": "dates and hours of timestamps, their text, windows of days",
        "spark.sql.timestampType": "whether TIMESTAMP has a time zone, also where text is parsed",
        "spark.sql.caseSensitive": "which field of a struct or of JSON a name means",
        "spark.sql.decimalOperations.allowPrecisionLoss": "scale of the result of decimal arithmetic",
        "spark.sql.mapKeyDedupPolicy": "which of two equal keys of a map wins, or an error",
        "spark.sql.icu.caseMappings.enabled": "upper and lower by ICU or by the JVM",
        "spark.sql.chunkBase64String.enabled": "line breaks in base64",
        "spark.sql.jsonGenerator.ignoreNullFields": "NULL fields in to_json",
        "spark.sql.json.enablePartialResults": "what from_json makes of bad fields",
        "spark.sql.json.enableExactStringParsing": "text of nested JSON that is read as a string",
        "spark.sql.columnNameOfCorruptRecord": "where from_json and from_csv put what they cannot parse",
        "spark.sql.variant.allowDuplicateKeys": "parse_json of an object that says a key twice",
        "spark.sql.preserveCharVarcharTypeInfo": "lengths of CHAR and VARCHAR",
        "spark.sql.readSideCharPadding": "padding of CHAR",
        "spark.sql.execution.pyspark.binaryAsBytes": "what Python functions get for BINARY",
        "spark.sql.execution.pandas.structHandlingMode": "what pandas functions get for a struct",
        "spark.sql.execution.pandas.convertToArrowArraySafely": "whether pandas functions may truncate",
        "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "integers of Python as DECIMAL",
        "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "integers with NULL in pandas",
    }
)
"""Names of settings, with what they change."""
RESULT_PREFIX = "spark.sql.legacy."
"""Settings that restore the behaviour of older Spark versions; those that are not at their default count."""


def read_result_settings(session: SparkSession) -> dict[str, str]:
    """The current values, and Spark's version. Sessions with equal values compute equal results."""
    known = read_map(session._jsparkSession.sessionState().conf().getAllConfs())
    legacy = {name: value for name, value in known.items() if name.startswith(RESULT_PREFIX)}
    changed = {name: value for name, value in legacy.items() if value != _read_default(session, name)}
    found = {name: str(session.conf.get(name)) for name in RESULT_SETTINGS} | changed
    return {"spark": session.version, **dict(sorted(found.items()))}


def _read_default(session: SparkSession, name: str) -> str | None:
    companion: Any = session._jvm.java.lang.Class.forName("org.apache.spark.sql.internal.SQLConf$")
    entry = companion.getField("MODULE$").get(None).getConfigEntry(name)
    return None if entry is None else str(entry.defaultValueString())
