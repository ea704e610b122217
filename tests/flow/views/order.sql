-- Where SQL leaves the order open, and the choice is ours: the plain view after each says what the oracle is asked.
CREATE MATERIALIZED VIEW listed AS SELECT b, collect_list(a) AS la, collect_set(c) AS sc, array_agg(x) AS lx FROM r GROUP BY b;
CREATE VIEW listed_told AS SELECT b, sort_array(collect_list(a)) AS la, sort_array(collect_set(c)) AS sc, sort_array(array_agg(x)) AS lx FROM r GROUP BY b;
CREATE MATERIALIZED VIEW firsts AS SELECT b, first(a) AS fa, any_value(c) AS ac, first(a) IGNORE NULLS AS fn, first_value(c, true) AS fc FROM r GROUP BY b;
CREATE VIEW firsts_told AS SELECT b, min(struct(a)).a AS fa, min(struct(c)).c AS ac, min(a) AS fn, min(c) AS fc FROM r GROUP BY b;
CREATE MATERIALIZED VIEW lasts AS SELECT b, last(a) AS la, last(d, true) AS ld, last_value(c) AS lc FROM r GROUP BY b;
CREATE VIEW lasts_told AS SELECT b, max(struct(a)).a AS la, max(d) AS ld, max(struct(c)).c AS lc FROM r GROUP BY b;
CREATE MATERIALIZED VIEW by_extreme AS SELECT b, max_by(a, d) AS ma, min_by(c, a) AS mc, max_by(a, d) FILTER (WHERE c = 'a') AS mf FROM r GROUP BY b;
CREATE VIEW by_extreme_told AS
SELECT b, (max(struct(d, a)) FILTER (WHERE d IS NOT NULL)).a AS ma, (min(struct(a, c)) FILTER (WHERE a IS NOT NULL)).c AS mc,
  (max(struct(d, a)) FILTER (WHERE d IS NOT NULL AND c = 'a')).a AS mf FROM r GROUP BY b;
CREATE MATERIALIZED VIEW most_frequent AS SELECT b, mode(a) AS ma, mode(c) AS mc FROM r GROUP BY b;
CREATE VIEW most_frequent_told AS SELECT b, mode() WITHIN GROUP (ORDER BY a) AS ma, mode() WITHIN GROUP (ORDER BY c) AS mc FROM r GROUP BY b;
CREATE MATERIALIZED VIEW tied_numbers AS SELECT a, b, c, d, x, row_number() OVER (PARTITION BY b ORDER BY a DESC) AS rn, lag(c) OVER (PARTITION BY b ORDER BY a DESC) AS lc FROM r;
CREATE VIEW tied_numbers_told AS
SELECT a, b, c, d, x, row_number() OVER w AS rn, lag(c) OVER w AS lc FROM r WINDOW w AS (PARTITION BY b ORDER BY a DESC, b, c, d, x);
CREATE MATERIALIZED VIEW tied_top AS SELECT a, b, c, d, x FROM r ORDER BY a DESC LIMIT 3;
CREATE VIEW tied_top_told AS SELECT a, b, c, d, x FROM r ORDER BY a DESC, b, c, d, x LIMIT 3;
CREATE MATERIALIZED VIEW first_of_distinct AS SELECT b, count(DISTINCT a) AS da, first(c) AS fc, collect_list(DISTINCT a) AS la FROM r GROUP BY b;
CREATE VIEW first_of_distinct_told AS SELECT b, count(DISTINCT a) AS da, min(struct(c)).c AS fc, sort_array(collect_set(a)) AS la FROM r GROUP BY b;
CREATE MATERIALIZED VIEW first_of_all AS SELECT first(a) AS fa, collect_list(c) AS lc FROM r;
CREATE VIEW first_of_all_told AS SELECT min(struct(a)).a AS fa, sort_array(collect_list(c)) AS lc FROM r;
CREATE MATERIALIZED VIEW constants_skipped AS SELECT k, w FROM VALUES (0, 'a'), (1, ''), (2, NULL), (NULL, 'b') AS v(k, w) ORDER BY k OFFSET 1;
CREATE MATERIALIZED VIEW constants_limited_and_skipped AS SELECT * FROM (SELECT k FROM VALUES (3), (0), (2), (1), (NULL) AS v(k) ORDER BY k LIMIT 9) OFFSET 2;
CREATE MATERIALIZED VIEW limit_of_one_row AS SELECT count(*) AS n, sum(a) AS sa FROM r LIMIT 100;
CREATE MATERIALIZED VIEW limit_of_subquery AS SELECT s.n, r.b FROM r JOIN (SELECT count(*) AS n FROM t LIMIT 1) AS s ON r.a < s.n;
