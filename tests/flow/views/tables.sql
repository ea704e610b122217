-- What the views of this folder read: a bag without a key, and two tables with one.
CREATE TABLE r (a BIGINT, b BIGINT, c STRING, d DECIMAL(10, 2), x DOUBLE);
CREATE TABLE s (id BIGINT NOT NULL, b BIGINT, e STRING, ts TIMESTAMP, day DATE, PRIMARY KEY (id));
CREATE TABLE t (
  k BIGINT NOT NULL, v INT, w ARRAY<INT>, m MAP<STRING, INT>, p STRUCT<f: INT, g: STRING>, j STRING, PRIMARY KEY (k)
);
