-- What once was wrong: keys that repeat, subqueries beside groups, rows without input.

CREATE MATERIALIZED VIEW key_twice AS
SELECT s.id FROM s LEFT SEMI JOIN r ON s.id = r.a AND s.b = r.a;

CREATE MATERIALIZED VIEW key_twice_null_safe AS
SELECT r.a, t.k FROM r JOIN t ON r.b <=> t.k AND r.b = t.k;

CREATE MATERIALIZED VIEW scalar_in_group AS
SELECT b, sum(a) + (SELECT count(*) FROM t) AS z FROM r GROUP BY b;

CREATE MATERIALIZED VIEW exists_of_groups AS
SELECT a FROM r WHERE EXISTS (SELECT e FROM s GROUP BY e);

CREATE MATERIALIZED VIEW exists_of_union AS
SELECT a FROM r WHERE EXISTS (SELECT v FROM t WHERE v = 1 UNION ALL SELECT id FROM s WHERE id = 2);

CREATE MATERIALIZED VIEW listagg_distinct AS
SELECT b, listagg(DISTINCT c, '-') WITHIN GROUP (ORDER BY c DESC) AS z FROM r GROUP BY b;

CREATE MATERIALIZED VIEW collated_join AS
SELECT r.a, s.id FROM r JOIN s ON r.c COLLATE UTF8_LCASE = s.e COLLATE UTF8_LCASE;

CREATE MATERIALIZED VIEW distinct_of_nothing AS
SELECT sum(DISTINCT a) FILTER (WHERE false) AS z FROM r;

CREATE MATERIALIZED VIEW column_twice AS
WITH q AS (SELECT y AS y, max(d) OVER (PARTITION BY y) AS n FROM (SELECT DISTINCT x AS y, d FROM r))
        SELECT q.n, r.a FROM q RIGHT JOIN r ON q.y = r.x;

CREATE MATERIALIZED VIEW collected_beside_distinct AS
SELECT count(DISTINCT b) AS n, array_join(sort_array(collect_list(c)), '-') AS z FROM r;

CREATE MATERIALIZED VIEW subqueries_without_from AS
SELECT (SELECT count(*) FROM r) AS r, (SELECT max(id) FROM s) AS s, (SELECT count(*) FROM t WHERE v > 1) AS t;

CREATE MATERIALIZED VIEW constants_before_tables AS
SELECT v.k, r.a, s.e FROM VALUES (0), (1), (2), (NULL) AS v(k) LEFT JOIN r ON r.a = v.k LEFT JOIN s ON s.b = v.k;

CREATE MATERIALIZED VIEW constants_without_partners AS
SELECT v.k FROM VALUES (0), (1), (2) AS v(k)
WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.a = v.k) AND EXISTS (SELECT 1 FROM s WHERE s.b = v.k OR s.id = v.k);

CREATE MATERIALIZED VIEW constants_behind_tables AS
SELECT r.a, v.k, t.v FROM r RIGHT JOIN VALUES (0), (1) AS v(k) ON r.b = v.k FULL JOIN t ON t.k = v.k;

CREATE MATERIALIZED VIEW constant_with_scalars AS
SELECT v.k, (SELECT sum(a) FROM r WHERE r.b = v.k) AS a, (SELECT count(*) FROM t) AS n, (SELECT max(e) FROM s) AS e
FROM VALUES (0), (1) AS v(k);

CREATE MATERIALIZED VIEW groups_of_constants AS
SELECT w, count(DISTINCT c) AS n, (SELECT count(*) FROM r) AS r FROM
(SELECT w, percentile(k, 0.5) AS p, count(DISTINCT k) AS c FROM VALUES (0, 'a'), (1, ''), (2, NULL) AS v(k, w) GROUP BY ROLLUP (w))
GROUP BY w;

CREATE MATERIALIZED VIEW ordered_by_a_constant AS
SELECT id AS col FROM s ORDER BY 'x' LIMIT 1;
CREATE VIEW ordered_by_a_constant_told AS SELECT min(id) AS col FROM s HAVING count(*) > 0;

CREATE MATERIALIZED VIEW ordered_by_constants AS
SELECT 5 AS k, id, b FROM s ORDER BY k LIMIT 3 OFFSET 1;
CREATE VIEW ordered_by_constants_told AS SELECT 5 AS k, id, b FROM s ORDER BY id LIMIT 3 OFFSET 1;

CREATE MATERIALIZED VIEW one_of_any AS
SELECT 1 AS col FROM r ORDER BY 'x' LIMIT 1;

CREATE MATERIALIZED VIEW scalar_by_a_constant AS
SELECT k, (SELECT id AS col FROM (SELECT id FROM s) ORDER BY 'x' LIMIT 1) AS z FROM t;
CREATE VIEW scalar_by_a_constant_told AS SELECT k, (SELECT min(id) FROM s) AS z FROM t;
