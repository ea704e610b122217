-- What Evertide chooses where SQL leaves the choice open: the plain view after each says what the oracle is asked.
CREATE MATERIALIZED VIEW listed_texts AS SELECT b, listagg(c, '-') AS lc, string_agg(c) AS sc, listagg(a, ',') AS la, listagg(CAST(c AS BINARY), X'2D') AS bc FROM r GROUP BY b;
CREATE VIEW listed_texts_told AS
SELECT b, listagg(c, '-') WITHIN GROUP (ORDER BY c) AS lc, string_agg(c) WITHIN GROUP (ORDER BY c) AS sc,
  listagg(a, ',') WITHIN GROUP (ORDER BY CAST(a AS STRING)) AS la, listagg(CAST(c AS BINARY), X'2D') WITHIN GROUP (ORDER BY CAST(c AS BINARY)) AS bc FROM r GROUP BY b;
CREATE MATERIALIZED VIEW listed_all AS SELECT listagg(c, '') AS lc, listagg(c, '+') FILTER (WHERE a > 1) AS fc FROM r;
CREATE VIEW listed_all_told AS SELECT listagg(c, '') WITHIN GROUP (ORDER BY c) AS lc, listagg(c, '+') WITHIN GROUP (ORDER BY c) FILTER (WHERE a > 1) AS fc FROM r;
CREATE MATERIALIZED VIEW listed_once AS SELECT b, listagg(DISTINCT c, '-') AS lc FROM r GROUP BY b;
CREATE VIEW listed_once_told AS SELECT b, listagg(DISTINCT c, '-') WITHIN GROUP (ORDER BY c) AS lc FROM r GROUP BY b;
CREATE MATERIALIZED VIEW percentiles_approx AS
SELECT b, percentile_approx(a, 0.5) AS a, approx_percentile(d, 0.33) AS d, percentile_approx(nullif(x, DOUBLE('NaN')), array(0.0, 0.25, 0.5, 1.0)) AS x, percentile_approx(a, 0.9, 200) FILTER (WHERE c = 'a') AS f FROM r GROUP BY b;
CREATE MATERIALIZED VIEW percentiles_approx_of_all AS SELECT percentile_approx(a, 0.1) AS a, approx_percentile(a, array(0.75)) AS l, count(*) AS n FROM r;
CREATE MATERIALIZED VIEW percentiles_approx_of_distinct AS SELECT b, percentile_approx(DISTINCT a, 0.5) AS a, sum(DISTINCT a) AS s FROM r GROUP BY b;
CREATE MATERIALIZED VIEW limit_in_exists AS SELECT id, b FROM s WHERE EXISTS (SELECT a FROM r WHERE r.b = s.b LIMIT 1);
CREATE MATERIALIZED VIEW limit_in_not_exists AS SELECT id FROM s WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.b = s.b AND r.a > 0 LIMIT 5);
CREATE MATERIALIZED VIEW limit_in_exists_of_all AS SELECT id FROM s WHERE EXISTS (SELECT a FROM r WHERE r.a > 2 LIMIT 2);
CREATE MATERIALIZED VIEW limit_zero_in_exists AS SELECT id FROM s WHERE EXISTS (SELECT a FROM r WHERE r.b = s.b LIMIT 0) OR id > 3;
CREATE MATERIALIZED VIEW limit_zero_in_not_exists AS SELECT id FROM s WHERE NOT EXISTS (SELECT a FROM r LIMIT 0);
CREATE MATERIALIZED VIEW limit_in_exists_of_greater AS SELECT id FROM s WHERE EXISTS (SELECT 1 FROM r WHERE r.b > s.b LIMIT 1);
CREATE MATERIALIZED VIEW limit_in_selected_exists AS SELECT id, EXISTS (SELECT a FROM r WHERE r.b = s.b LIMIT 1) AS z FROM s;
CREATE MATERIALIZED VIEW percentiles_approx_of_times AS
SELECT b, percentile_approx(day, 0.5) AS d, percentile_approx(ts, array(0.1, 0.9)) AS t, approx_percentile(id, 0.7) AS i FROM s GROUP BY b;
CREATE TEMPORARY VIEW renamed (p, q) AS SELECT a, b FROM r WHERE a > 0;
CREATE MATERIALIZED VIEW of_renamed AS SELECT q, sum(p) AS p, count(*) AS n FROM renamed GROUP BY q;
CREATE VIEW of_renamed_told AS SELECT b AS q, sum(a) AS p, count(*) AS n FROM r WHERE a > 0 GROUP BY b;
