-- Joins of every kind.
CREATE MATERIALIZED VIEW inner_join AS SELECT r.a, r.c, s.e FROM r JOIN s ON r.b = s.b;
CREATE MATERIALIZED VIEW inner_residual AS SELECT r.a, s.id FROM r JOIN s ON r.b = s.b AND r.a < s.id;
CREATE MATERIALIZED VIEW inner_using AS SELECT b, a, id FROM r JOIN s USING (b);
CREATE MATERIALIZED VIEW left_join AS SELECT r.a, r.c, s.id, s.e FROM r LEFT JOIN s ON r.b = s.b;
CREATE MATERIALIZED VIEW left_residual AS SELECT r.a, s.id FROM r LEFT JOIN s ON r.b = s.b AND r.c = s.e;
CREATE MATERIALIZED VIEW left_condition_on_left AS SELECT r.a, s.id FROM r LEFT JOIN s ON r.b = s.b AND r.a > 1;
CREATE MATERIALIZED VIEW left_filtered AS SELECT r.a, s.id FROM r LEFT JOIN s ON r.b = s.b WHERE s.id IS NULL OR r.a = 1;
CREATE MATERIALIZED VIEW right_join AS SELECT r.a, s.id FROM r RIGHT JOIN s ON r.b = s.b AND r.a < s.id;
CREATE MATERIALIZED VIEW full_join AS SELECT r.a, r.b AS rb, s.id, s.b AS sb FROM r FULL JOIN s ON r.b = s.b;
CREATE MATERIALIZED VIEW full_residual AS
SELECT r.a, r.b AS rb, s.id, s.b AS sb FROM r FULL JOIN s ON r.b = s.b AND r.a > 2;
CREATE MATERIALIZED VIEW full_using AS SELECT b, a, id FROM r FULL JOIN s USING (b);
CREATE MATERIALIZED VIEW semi_join AS SELECT a, b, c FROM r LEFT SEMI JOIN s ON r.b = s.b AND s.id > r.a;
CREATE MATERIALIZED VIEW anti_join AS SELECT a, b, x FROM r LEFT ANTI JOIN s ON r.b = s.b AND s.e = r.c;
CREATE MATERIALIZED VIEW anti_without_key AS SELECT a, b FROM r LEFT ANTI JOIN s ON r.a > s.id;
CREATE MATERIALIZED VIEW existence_join AS SELECT a, b FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.b = r.b) OR a = 1;
CREATE MATERIALIZED VIEW existence_shown AS SELECT a, b IN (SELECT b FROM s WHERE b IS NOT NULL) AS is_in FROM r WHERE b IS NOT NULL;
CREATE MATERIALIZED VIEW cross_join AS SELECT r.a, t.k FROM r CROSS JOIN t;
CREATE MATERIALIZED VIEW cross_filtered AS SELECT r.a, t.k FROM r, t WHERE r.a = 1 AND t.v = 2;
CREATE MATERIALIZED VIEW less_than_join AS SELECT r.a, t.k FROM r JOIN t ON r.a < t.v;
CREATE MATERIALIZED VIEW less_than_left AS SELECT r.a, t.k FROM r LEFT JOIN t ON r.a > t.v AND t.k < 4;
CREATE MATERIALIZED VIEW less_than_full AS SELECT r.a, t.k FROM r FULL JOIN t ON r.a > t.v;
CREATE MATERIALIZED VIEW band_join AS SELECT x.id, y.id AS other FROM s x JOIN s y ON x.ts BETWEEN y.ts - INTERVAL 5 SECONDS AND y.ts;
CREATE MATERIALIZED VIEW or_join AS SELECT r.a, s.id FROM r JOIN s ON r.b = s.b OR r.c = s.e;
CREATE MATERIALIZED VIEW not_in AS SELECT a, b FROM r WHERE a NOT IN (SELECT b FROM s);
CREATE MATERIALIZED VIEW not_in_not_null AS SELECT id FROM s WHERE id NOT IN (SELECT k FROM t);
CREATE MATERIALIZED VIEW not_in_correlated AS SELECT a, b, c FROM r WHERE a NOT IN (SELECT v FROM t WHERE t.k = r.b);
CREATE MATERIALIZED VIEW not_in_pair AS SELECT a, b FROM r WHERE (a, b) NOT IN (SELECT v, b FROM t JOIN s ON t.k = s.id);
CREATE MATERIALIZED VIEW null_safe AS SELECT r.a, s.id FROM r JOIN s ON r.b <=> s.b;
CREATE MATERIALIZED VIEW null_safe_left AS SELECT r.a, s.id FROM r LEFT JOIN s ON r.b <=> s.b AND r.c <=> s.e;
CREATE MATERIALIZED VIEW float_key AS SELECT y.a, z.a AS za FROM r y JOIN r z ON y.x = z.x;
CREATE MATERIALIZED VIEW decimal_key AS SELECT y.a, z.a AS za FROM r y JOIN r z ON y.d = z.d AND y.a <> z.a;
CREATE MATERIALIZED VIEW cast_key AS SELECT r.a, t.k FROM r JOIN t ON r.a = t.v;
CREATE MATERIALIZED VIEW expression_key AS SELECT r.a, s.id FROM r JOIN s ON r.a + 1 = s.id * 1;
CREATE MATERIALIZED VIEW expression_key_left AS SELECT r.c, s.id FROM r LEFT JOIN s ON upper(r.c) = upper(s.e);
CREATE MATERIALIZED VIEW expression_key_full AS SELECT r.a, s.id FROM r FULL JOIN s ON r.a % 2 = s.id % 2 AND r.b = s.b;
CREATE MATERIALIZED VIEW struct_key AS SELECT y.k, z.k AS zk FROM t y JOIN t z ON y.p = z.p;
CREATE MATERIALIZED VIEW array_key AS SELECT y.k, z.k AS zk FROM t y LEFT JOIN t z ON y.w = z.w AND y.k < z.k;
CREATE MATERIALIZED VIEW self_join AS SELECT y.a, z.a AS za FROM r y JOIN r z ON y.b = z.b AND y.a < z.a;
CREATE MATERIALIZED VIEW self_left AS SELECT y.id, z.id AS zid FROM s y LEFT JOIN s z ON y.b = z.id;
CREATE MATERIALIZED VIEW self_thrice AS SELECT x.id, y.id AS yid, z.id AS zid FROM s x JOIN s y ON x.b = y.id JOIN s z ON y.b = z.id;
CREATE MATERIALIZED VIEW three_tables AS SELECT r.a, s.e, t.v FROM r JOIN s ON r.b = s.b JOIN t ON t.k = s.id;
CREATE MATERIALIZED VIEW left_chain AS SELECT r.a, s.e, t.v FROM r LEFT JOIN s ON r.b = s.b LEFT JOIN t ON t.k = s.id;
CREATE MATERIALIZED VIEW left_of_full AS SELECT s.id, r.a, t.v FROM s FULL JOIN r ON r.b = s.b LEFT JOIN t ON t.k = s.id;
CREATE MATERIALIZED VIEW full_of_left AS SELECT r.a, s.id, t.k FROM r LEFT JOIN s ON r.b = s.b FULL JOIN t ON t.k = s.id;
CREATE MATERIALIZED VIEW join_of_coalesced AS
SELECT q.b, t.v FROM (SELECT coalesce(r.b, s.id) AS b FROM r FULL JOIN s ON r.b = s.b) q JOIN t ON t.k = q.b;
CREATE MATERIALIZED VIEW join_of_aggregates AS
SELECT coalesce(x.b, y.b) AS b, x.n, y.m
FROM (SELECT b, count(*) AS n FROM r GROUP BY b) x FULL JOIN (SELECT b, max(id) AS m FROM s GROUP BY b) y ON x.b = y.b;
CREATE MATERIALIZED VIEW join_on_aggregate AS
SELECT t.k, q.b FROM t JOIN (SELECT b, count(*) AS n, max(a) AS m FROM r GROUP BY b) q ON q.n = t.v AND q.m = t.k;
CREATE MATERIALIZED VIEW join_with_group AS
SELECT s.id, q.n, q.m FROM s LEFT JOIN (SELECT b, count(*) AS n, min(c) AS m FROM r GROUP BY b) q ON q.b = s.b;
CREATE MATERIALIZED VIEW join_with_values AS SELECT r.a, v.n FROM r JOIN (VALUES (1, 'one'), (2, 'two')) v (k, n) ON r.a = v.k;
CREATE MATERIALIZED VIEW values_left AS SELECT v.k, t.v FROM (VALUES (1), (2), (99)) v (k) LEFT JOIN t ON t.k = v.k;
CREATE MATERIALIZED VIEW natural_join AS SELECT * FROM (SELECT b, a FROM r) NATURAL JOIN (SELECT b, id FROM s);
CREATE MATERIALIZED VIEW date_key AS SELECT x.id, y.id AS yid FROM s x JOIN s y ON x.day = y.day AND x.id < y.id;
