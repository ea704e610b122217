-- What is computed of each row: every type, generators, JSON, VARIANT.
CREATE MATERIALIZED VIEW filter AS SELECT a, b FROM r WHERE a > 1 OR b IS NULL;
CREATE MATERIALIZED VIEW moved AS SELECT c, a, a AS a2, x FROM r;
CREATE MATERIALIZED VIEW whole AS SELECT * FROM r;
CREATE MATERIALIZED VIEW whole_nested AS SELECT * FROM t;
CREATE MATERIALIZED VIEW arithmetic AS SELECT a + b AS ab, upper(c) AS u, x * 2 AS y, d + 1 AS d1, -x AS nx, d / 3 AS d3, a DIV 2 AS h, pmod(a, 3) AS p FROM r;
CREATE MATERIALIZED VIEW cases AS SELECT a, CASE WHEN a > 2 THEN 'hi' WHEN b IS NULL THEN 'nb' ELSE c END AS z, if(x > 0, x, 0) AS y, nullif(a, b) AS n, coalesce(c, 'none') AS cc FROM r;
CREATE MATERIALIZED VIEW texts AS SELECT c, length(c) AS l, concat(c, '-', e) AS ce, substring(c, 1, 1) AS s1, c LIKE 'a%' AS li, c RLIKE '[ab]' AS rl, regexp_replace(c, 'a', 'x') AS rx, sha2(c, 256) AS sh FROM r JOIN s ON r.b = s.b;
CREATE MATERIALIZED VIEW conversions AS SELECT CAST(a AS STRING) AS s, CAST(d AS DOUBLE) AS f, try_cast(c AS INT) AS i, CAST(a AS DECIMAL(20, 4)) AS dd, CAST(c AS BINARY) AS bi, a > 1 AS bo FROM r;
CREATE MATERIALIZED VIEW dates AS
SELECT id, date_add(day, 1) AS d1, datediff(day, DATE'2026-01-01') AS d2, year(day) AS y, date_trunc('MONTH', ts) AS m, last_day(day) AS ld, date_format(ts, 'yyyy-MM-dd HH') AS f, hour(ts) AS h FROM s;
CREATE MATERIALIZED VIEW times AS
SELECT id, ts + INTERVAL 5 SECONDS AS t1, ts - TIMESTAMP'2026-01-01 00:00:00' AS t2, unix_micros(ts) AS t3, CAST(ts AS TIMESTAMP_NTZ) AS t4, make_dt_interval(1, 0, 0, id) AS t5, day + INTERVAL '1' MONTH AS t6 FROM s;
CREATE MATERIALIZED VIEW group_by_interval AS SELECT ts - TIMESTAMP'2026-01-01 00:00:00' AS i, count(*) AS n FROM s GROUP BY 1;
CREATE MATERIALIZED VIEW exploded AS SELECT k, explode(w) AS e FROM t;
CREATE MATERIALIZED VIEW exploded_outer AS SELECT k, pos, col FROM t LATERAL VIEW OUTER posexplode(w) e AS pos, col;
CREATE MATERIALIZED VIEW exploded_map AS SELECT k, key, value FROM t LATERAL VIEW explode(m) AS key, value;
CREATE MATERIALIZED VIEW exploded_twice AS SELECT k, x, y FROM t LATERAL VIEW explode(w) AS x LATERAL VIEW explode(w) AS y;
CREATE MATERIALIZED VIEW exploded_grouped AS SELECT e, count(*) AS n, max(k) AS mk FROM (SELECT k, explode(w) AS e FROM t) GROUP BY e;
CREATE MATERIALIZED VIEW exploded_joined AS SELECT q.k, s.e FROM (SELECT k, explode(w) AS e FROM t) q JOIN s ON s.id = q.e;
CREATE MATERIALIZED VIEW inlined AS SELECT k, inline(array(named_struct('n', 1, 'z', v), named_struct('n', 2, 'z', v + 1))) FROM t;
CREATE MATERIALIZED VIEW stacked AS SELECT id, stack(2, 'b', b, 'id', id) AS (n, z) FROM s;
CREATE MATERIALIZED VIEW table_function AS SELECT s.id, q.col FROM s, LATERAL explode(array(b, id)) q;
CREATE MATERIALIZED VIEW repeated AS SELECT id, explode(sequence(1, CAST(least(id, 3) AS INT))) AS n FROM s WHERE id > 0;
CREATE MATERIALIZED VIEW json_read AS SELECT k, from_json(j, 'a INT, b ARRAY<INT>') AS js, get_json_object(j, '$.a') AS a, json_array_length(get_json_object(j, '$.b')) AS n FROM t;
CREATE MATERIALIZED VIEW json_written AS SELECT k, to_json(named_struct('v', v, 'w', w, 'p', p)) AS js, to_json(m) AS jm FROM t;
CREATE MATERIALIZED VIEW json_tuples AS SELECT k, a, b FROM t LATERAL VIEW json_tuple(j, 'a', 'b') AS a, b;
CREATE MATERIALIZED VIEW json_grouped AS SELECT get_json_object(j, '$.a') AS a, count(*) AS n, max(k) AS mk FROM t GROUP BY 1;
CREATE MATERIALIZED VIEW arrays AS
SELECT k, size(w) AS n, w[0] AS w0, array_contains(w, 3) AS c3, transform(w, y -> y + 1) AS tr, filter(w, y -> y > 1) AS fi, aggregate(w, 0, (acc, y) -> acc + coalesce(y, 0)) AS su, array_sort(w) AS so, array_distinct(w) AS di, concat(w, array(v)) AS co FROM t WHERE size(w) > 0;
CREATE MATERIALIZED VIEW maps AS
SELECT k, m, map_keys(m) AS mk, map_values(m) AS mv, element_at(m, 'a') AS ma, size(m) AS n, map_filter(m, (q, z) -> z > 0) AS mf, map_from_arrays(array('a', 'v'), array(k, v)) AS made FROM t;
CREATE MATERIALIZED VIEW maps_joined AS SELECT s.id, t.m FROM s LEFT JOIN t ON t.k = s.id;
CREATE MATERIALIZED VIEW map_values_grouped AS SELECT element_at(m, '') AS z, count(*) AS n, max(size(m)) AS ms FROM t GROUP BY 1;
CREATE MATERIALIZED VIEW structs AS SELECT k, p.f, p.g AS pg, named_struct('k', k, 'p', p) AS outer, struct(v, w) AS vw FROM t;
CREATE MATERIALIZED VIEW struct_groups AS SELECT p, count(*) AS n, max(w) AS mw FROM t GROUP BY p;
CREATE MATERIALIZED VIEW variant_read AS
SELECT k, try_variant_get(try_parse_json(j), '$.a', 'int') AS a, variant_get(try_parse_json(j), '$.b[0]', 'string') AS b, schema_of_variant(try_parse_json(j)) AS sc FROM t;
CREATE MATERIALIZED VIEW variant_exploded AS SELECT k, q.pos, q.key FROM t, LATERAL variant_explode(try_parse_json(j)) q;
CREATE MATERIALIZED VIEW decimals AS SELECT d * d AS dd, d / 7 AS d7, try_cast(d AS DECIMAL(5, 1)) AS d1, round(d, 1) AS dr, d % 2 AS dm, CAST(d AS DECIMAL(38, 18)) AS dw FROM r;
CREATE MATERIALIZED VIEW floats AS SELECT x, x + 1 AS x1, isnan(x) AS nan, CAST(x AS FLOAT) AS f, nanvl(x, 0) AS nv, x = 0 AS zero FROM r;
CREATE MATERIALIZED VIEW repartitioned AS SELECT /*+ REPARTITION(3) */ a, b FROM r DISTRIBUTE BY a SORT BY b;
CREATE MATERIALIZED VIEW hinted AS SELECT /*+ BROADCAST(s) */ r.a, s.id FROM r JOIN s ON r.b = s.b;
