-- Scalar subqueries where Spark leaves them in an expression, in every clause.

CREATE MATERIALIZED VIEW scalar_above_top AS
SELECT a, (SELECT max(id) FROM s) AS m FROM (SELECT * FROM r ORDER BY a, b, c, d, x LIMIT 5) LIMIT 3;

CREATE MATERIALIZED VIEW scalar_between_cuts AS
SELECT id, z + (SELECT min(k) FROM t) AS y FROM (SELECT id, id + (SELECT max(k) FROM t) AS z FROM (SELECT id FROM s ORDER BY id DESC LIMIT 5) OFFSET 1) LIMIT 3;

CREATE MATERIALIZED VIEW scalar_in_order AS
SELECT id, (SELECT max(k) FROM t) AS m FROM s ORDER BY abs(id - (SELECT max(k) FROM t)), id LIMIT 3;

CREATE MATERIALIZED VIEW scalar_in_order_of_rest AS
SELECT id FROM s ORDER BY abs(id - (SELECT max(k) FROM t)), id OFFSET 2;

CREATE MATERIALIZED VIEW scalar_in_order_per_row AS
SELECT s.id, q.z FROM s, LATERAL
(SELECT a + (SELECT max(k) FROM t) AS z FROM r WHERE r.b = s.b ORDER BY abs(a - (SELECT max(k) FROM t)), a, c, d, x LIMIT 2) q;

CREATE MATERIALIZED VIEW scalar_in_distinct AS
SELECT c, count(DISTINCT a + (SELECT max(k) FROM t)) AS p, count(DISTINCT b) AS q, sum(a) AS z FROM r GROUP BY c;

CREATE MATERIALIZED VIEW scalar_in_filters AS
SELECT count(DISTINCT a) FILTER (WHERE b < (SELECT max(k) FROM t)) AS p, count(DISTINCT b) AS q, sum(a) FILTER (WHERE b > (SELECT min(k) FROM t)) AS z FROM r;

CREATE MATERIALIZED VIEW scalar_in_window AS
SELECT id, row_number() OVER (PARTITION BY id % (SELECT count(*) + 1 FROM t) ORDER BY id + (SELECT max(k) FROM t)) AS n FROM s;

CREATE MATERIALIZED VIEW scalar_in_join AS
SELECT s.id, r.a FROM s FULL JOIN r ON s.b = r.b + (SELECT count(*) FROM t);

CREATE MATERIALIZED VIEW scalar_in_sets AS
SELECT b + (SELECT max(k) FROM t) AS g, c, count(*) AS n FROM r GROUP BY CUBE (b + (SELECT max(k) FROM t), c);

CREATE MATERIALIZED VIEW scalar_in_explode AS
SELECT id, explode(array(id, (SELECT max(k) FROM t))) AS z FROM s;

CREATE MATERIALIZED VIEW correlated_as_key AS
SELECT (SELECT max(k) FROM t WHERE t.v = r.b) AS g, count(*) AS n FROM r GROUP BY (SELECT max(k) FROM t WHERE t.v = r.b);

CREATE MATERIALIZED VIEW scalars_of_one_name AS
SELECT a, (SELECT count(*) FROM s) AS n, (SELECT count(*) FROM s WHERE b > 1) AS m FROM r;

CREATE MATERIALIZED VIEW scalars_of_one_name_and_null AS
SELECT a, (SELECT max(b) FROM s) AS n, (SELECT max(b) FROM s WHERE b < 2) AS m FROM r;

CREATE MATERIALIZED VIEW shared_without_columns AS
WITH w AS (SELECT s.id, r.x FROM s CROSS JOIN r) SELECT k, (SELECT count(*) FROM w) AS n, EXISTS (SELECT 1 FROM w) AS e FROM t;

CREATE MATERIALIZED VIEW joined_without_columns AS
SELECT r.a FROM r CROSS JOIN (SELECT max(id) AS c FROM s HAVING count(*) > 2);

CREATE MATERIALIZED VIEW counted_without_columns AS
SELECT count(*) AS n FROM (SELECT count(*) AS c FROM s) CROSS JOIN r;

CREATE MATERIALIZED VIEW one_of_other_types AS
SELECT a, (SELECT true AS t FROM s ORDER BY id LIMIT 1) AS p, (SELECT CAST(1 AS BIGINT) AS t FROM s ORDER BY id LIMIT 1) AS q, (SELECT 1.0D AS t FROM s ORDER BY id LIMIT 1) AS o FROM r;

-- Correlated subqueries above a LIMIT. The oracle's queries have no LIMIT: see "Where Spark is wrong" in docs/sql.md.

CREATE MATERIALIZED VIEW correlated_above_top AS
SELECT q.id, (SELECT max(k) FROM t WHERE t.v = q.b) AS m FROM (SELECT id, b FROM s ORDER BY b DESC, id DESC LIMIT 2) q;
CREATE VIEW correlated_above_top_told AS
SELECT q.id, (SELECT max(k) FROM t WHERE t.v = q.b) AS m FROM (SELECT id, b FROM s QUALIFY row_number() OVER (ORDER BY b DESC, id DESC) <= 2) q;

CREATE MATERIALIZED VIEW correlated_above_offset AS
SELECT q.id, (SELECT count(*) FROM t WHERE t.v = q.b) AS n FROM (SELECT id, b FROM s ORDER BY id DESC OFFSET 2) q;
CREATE VIEW correlated_above_offset_told AS
SELECT q.id, (SELECT count(*) FROM t WHERE t.v = q.b) AS n FROM (SELECT id, b FROM s QUALIFY row_number() OVER (ORDER BY id DESC) > 2) q;

CREATE MATERIALIZED VIEW correlated_between_tops AS
SELECT q.id + 1 AS id, (SELECT max(k) FROM t WHERE t.v = q.b) AS m FROM
(SELECT id, b FROM (SELECT id, b FROM s ORDER BY b, id DESC LIMIT 4) ORDER BY id DESC LIMIT 2 OFFSET 1) q;
CREATE VIEW correlated_between_tops_told AS
SELECT q.id + 1 AS id, (SELECT max(k) FROM t WHERE t.v = q.b) AS m FROM
(SELECT id, b FROM (SELECT id, b FROM s QUALIFY row_number() OVER (ORDER BY b, id DESC) <= 4) QUALIFY row_number() OVER (ORDER BY id DESC) IN (2, 3)) q;

CREATE MATERIALIZED VIEW exists_above_top AS
SELECT q.id, EXISTS (SELECT 1 FROM r WHERE r.b = q.b AND r.a > 0) AS z, q.b NOT IN (SELECT v FROM t) AS y FROM (SELECT id, b FROM s ORDER BY id DESC LIMIT 3) q;
CREATE VIEW exists_above_top_told AS
SELECT q.id, EXISTS (SELECT 1 FROM r WHERE r.b = q.b AND r.a > 0) AS z, q.b NOT IN (SELECT v FROM t) AS y FROM (SELECT id, b FROM s QUALIFY row_number() OVER (ORDER BY id DESC) <= 3) q;

CREATE MATERIALIZED VIEW window_above_top AS
SELECT q.id, rank() OVER (ORDER BY (SELECT max(k) FROM t WHERE t.v = q.b)) AS z FROM (SELECT id, b FROM s ORDER BY id DESC LIMIT 3) q;
CREATE VIEW window_above_top_told AS
SELECT q.id, rank() OVER (ORDER BY (SELECT max(k) FROM t WHERE t.v = q.b)) AS z FROM (SELECT id, b FROM s QUALIFY row_number() OVER (ORDER BY id DESC) <= 3) q;
