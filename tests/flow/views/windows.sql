-- Window functions, and the first rows: of all, and per group.
CREATE MATERIALIZED VIEW ranks AS
SELECT a, b, d, rank() OVER w AS r1, dense_rank() OVER w AS r2, cume_dist() OVER w AS r3, percent_rank() OVER w AS r4 FROM r WINDOW w AS (PARTITION BY b ORDER BY d);
CREATE MATERIALIZED VIEW numbers AS SELECT id, b, row_number() OVER (PARTITION BY b ORDER BY ts DESC, id) AS rn, ntile(3) OVER (PARTITION BY b ORDER BY id) AS nt FROM s;
CREATE MATERIALIZED VIEW offsets AS
SELECT id, b, lag(id) OVER w AS l1, lead(id, 2) OVER w AS l2, lag(e, 1, 'none') OVER w AS l3, lead(e) IGNORE NULLS OVER w AS l4 FROM s WINDOW w AS (PARTITION BY b ORDER BY id);
CREATE MATERIALIZED VIEW framed_rows AS
SELECT id, b, sum(id) OVER (PARTITION BY b ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS f1,
  max(e) OVER (PARTITION BY b ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) AS f2,
  count(*) OVER (PARTITION BY b ORDER BY id ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING) AS f3
FROM s;
CREATE MATERIALIZED VIEW framed_ranges AS
SELECT id, b, sum(id) OVER (PARTITION BY e ORDER BY b) AS f1, count(*) OVER (PARTITION BY e ORDER BY b RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS f2,
  min(id) OVER (PARTITION BY e ORDER BY b DESC RANGE BETWEEN UNBOUNDED PRECEDING AND 2 FOLLOWING) AS f3,
  count(*) OVER (PARTITION BY b ORDER BY ts RANGE BETWEEN INTERVAL 10 SECONDS PRECEDING AND CURRENT ROW) AS f4
FROM s;
CREATE MATERIALIZED VIEW whole_partitions AS SELECT a, b, sum(a) OVER (PARTITION BY b) AS sa, avg(d) OVER (PARTITION BY b) AS ad, count(*) OVER (PARTITION BY b, c) AS n FROM r;
CREATE MATERIALIZED VIEW values_at AS
SELECT id, b, first_value(id) OVER w AS v1, last_value(e) OVER w AS v2, nth_value(id, 2) OVER w AS v3, first_value(e) IGNORE NULLS OVER w AS v4 FROM s WINDOW w AS (PARTITION BY b ORDER BY id);
CREATE MATERIALIZED VIEW unpartitioned AS SELECT id, row_number() OVER (ORDER BY id DESC) AS rn, sum(id) OVER (ORDER BY id) AS su, count(*) OVER () AS n FROM s;
CREATE MATERIALIZED VIEW share AS SELECT id, b, id / sum(id) OVER (PARTITION BY b) AS part FROM s WHERE id > 0;
CREATE MATERIALIZED VIEW collected_over AS SELECT id, b, collect_list(id) OVER (PARTITION BY b ORDER BY id) AS ids FROM s;
CREATE MATERIALIZED VIEW partition_by_expression AS SELECT id, rank() OVER (PARTITION BY id % 3, upper(e) ORDER BY b) AS rk FROM s;
CREATE MATERIALIZED VIEW several_windows AS SELECT id, rank() OVER (PARTITION BY b ORDER BY e) AS r1, rank() OVER (PARTITION BY e ORDER BY b) AS r2, count(*) OVER (PARTITION BY day) AS n FROM s;
CREATE MATERIALIZED VIEW window_of_groups AS SELECT b, sum(a) AS sa, rank() OVER (ORDER BY sum(a) DESC) AS rk, sum(count(*)) OVER () AS n FROM r GROUP BY b;
CREATE MATERIALIZED VIEW groups_of_window AS SELECT rk, count(*) AS n, max(b) AS mb FROM (SELECT b, rank() OVER (PARTITION BY b ORDER BY d) AS rk FROM r) GROUP BY rk;
CREATE MATERIALIZED VIEW window_of_join AS
SELECT id, a, rk FROM (SELECT s.id, r.a, rank() OVER (PARTITION BY s.id ORDER BY r.a DESC NULLS LAST) AS rk FROM s JOIN r ON r.b = s.b) WHERE rk = 1;
CREATE MATERIALIZED VIEW window_of_left AS SELECT s.id, r.a, count(r.a) OVER (PARTITION BY r.b) AS n FROM s LEFT JOIN r ON r.b = s.b;
CREATE MATERIALIZED VIEW window_of_window AS
SELECT id, rn, lag(rn) OVER (PARTITION BY e ORDER BY id) AS before FROM (SELECT id, e, row_number() OVER (PARTITION BY b ORDER BY id) AS rn FROM s);
CREATE MATERIALIZED VIEW qualified AS SELECT id, b FROM s QUALIFY row_number() OVER (PARTITION BY b ORDER BY ts, id) <= 2;
CREATE MATERIALIZED VIEW latest_per_group AS SELECT b, id, e FROM (SELECT *, row_number() OVER (PARTITION BY b ORDER BY ts DESC, id DESC) AS rn FROM s) WHERE rn = 1;
CREATE MATERIALIZED VIEW rank_limited AS SELECT a, b, d FROM (SELECT a, b, d, rank() OVER (PARTITION BY b ORDER BY d DESC) AS rk FROM r) WHERE rk <= 2;
CREATE MATERIALIZED VIEW dense_limited AS SELECT id, b FROM (SELECT id, b, dense_rank() OVER (ORDER BY b) AS rk FROM s) WHERE rk < 3;
CREATE MATERIALIZED VIEW duplicates_numbered AS
SELECT a, b, c, d, x, row_number() OVER (PARTITION BY b ORDER BY a, c, d, x) AS rn FROM r;
CREATE MATERIALIZED VIEW top_three AS SELECT id, b FROM s ORDER BY b DESC, id LIMIT 3;
CREATE MATERIALIZED VIEW top_offset AS SELECT id, e FROM s ORDER BY id LIMIT 2 OFFSET 1;
CREATE MATERIALIZED VIEW only_offset AS SELECT id, e FROM s ORDER BY id OFFSET 3;
CREATE MATERIALIZED VIEW top_of_groups AS SELECT b, sum(a) AS sa FROM r GROUP BY b ORDER BY sa DESC, b LIMIT 2;
CREATE MATERIALIZED VIEW top_of_join AS SELECT s.id, t.v FROM s JOIN t ON t.k = s.id ORDER BY t.v NULLS LAST, s.id LIMIT 4;
CREATE MATERIALIZED VIEW join_of_top AS SELECT q.id, t.v FROM (SELECT id, b FROM s ORDER BY id DESC LIMIT 3) q LEFT JOIN t ON t.k = q.b;
CREATE MATERIALIZED VIEW groups_of_top AS SELECT b, count(*) AS n FROM (SELECT id, b FROM s ORDER BY id DESC LIMIT 4) GROUP BY b;
CREATE MATERIALIZED VIEW top_of_top AS SELECT id FROM (SELECT id, b FROM s ORDER BY id LIMIT 5) ORDER BY b, id LIMIT 2;
CREATE MATERIALIZED VIEW top_of_bag AS SELECT a, b, c, d, x FROM r ORDER BY a, b, c, d, x LIMIT 4;
CREATE MATERIALIZED VIEW offset_of_top AS SELECT id FROM (SELECT id FROM s ORDER BY id LIMIT 4) OFFSET 2;
CREATE MATERIALIZED VIEW offset_beyond_top AS SELECT id FROM (SELECT id FROM s ORDER BY id LIMIT 2) OFFSET 3;
CREATE MATERIALIZED VIEW top_of_offset AS SELECT id FROM (SELECT id FROM s ORDER BY id OFFSET 2) LIMIT 2;
CREATE MATERIALIZED VIEW offset_of_offset AS SELECT id FROM (SELECT id FROM s ORDER BY id LIMIT 5 OFFSET 1) LIMIT 3 OFFSET 2;
CREATE MATERIALIZED VIEW offset_in_subquery AS
SELECT a, b FROM r WHERE b IN (SELECT id FROM (SELECT id FROM s ORDER BY id LIMIT 3) OFFSET 1);
CREATE MATERIALIZED VIEW offset_correlated AS
SELECT id, (SELECT max(a) FROM (SELECT a FROM (SELECT a FROM r WHERE r.b = s.b ORDER BY a LIMIT 3) OFFSET 1)) AS ma FROM s;
CREATE MATERIALIZED VIEW top_of_many AS SELECT id FROM s ORDER BY id LIMIT 2147483647;
CREATE MATERIALIZED VIEW top_none AS SELECT id FROM s ORDER BY id LIMIT 0;
CREATE MATERIALIZED VIEW top_per_row AS
SELECT s.id, q.a FROM s, LATERAL (SELECT a FROM r WHERE r.b = s.b ORDER BY a NULLS LAST, c, d, x LIMIT 1) q;
CREATE MATERIALIZED VIEW ordered AS SELECT id, b FROM s ORDER BY b;
CREATE MATERIALIZED VIEW tumbling AS SELECT window(ts, '10 seconds').start AS st, count(*) AS n, max(id) AS m FROM s GROUP BY window(ts, '10 seconds');
CREATE MATERIALIZED VIEW tumbling_whole AS SELECT window, b, sum(id) AS si FROM s GROUP BY window(ts, '10 minutes', '10 minutes', '1 minute'), b;
CREATE MATERIALIZED VIEW hopping AS SELECT window(ts, '20 seconds', '10 seconds').end AS en, count(*) AS n, min(e) AS me FROM s GROUP BY window(ts, '20 seconds', '10 seconds');
CREATE MATERIALIZED VIEW sessions AS SELECT session_window(ts, '5 seconds').start AS st, session_window(ts, '5 seconds').end AS en, b, count(*) AS n FROM s GROUP BY session_window(ts, '5 seconds'), b;
CREATE MATERIALIZED VIEW sessions_global AS SELECT session_window(ts, '5 seconds') AS w, count(*) AS n, max(id) AS mi FROM s GROUP BY session_window(ts, '5 seconds');
CREATE MATERIALIZED VIEW sessions_dynamic AS
SELECT session_window.start AS st, e, sum(id) AS si FROM s GROUP BY session_window(ts, CASE WHEN b > 1 THEN '5 seconds' ELSE '10 minutes' END), e;
CREATE MATERIALIZED VIEW window_times AS SELECT window_time(w) AS wt, n FROM (SELECT window(ts, '10 seconds') AS w, count(*) AS n FROM s GROUP BY window(ts, '10 seconds'));
CREATE MATERIALIZED VIEW float_frames AS SELECT id, sum(y) OVER (PARTITION BY b ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS sy FROM (SELECT id, b, id / 4 AS y FROM s);
