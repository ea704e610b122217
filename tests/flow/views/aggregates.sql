-- Groups: functions that can be undone, functions that cannot, DISTINCT, FILTER, several groupings at once. Rounded where the
-- exact result can be 0: there Spark has a rounding error such as -2.5e-16, which no relative tolerance accepts.
CREATE MATERIALIZED VIEW sums AS SELECT b, count(*) AS n, count(a) AS na, sum(a) AS sa, sum(d) AS sd, avg(d) AS ad, avg(a) AS aa FROM r GROUP BY b;
CREATE MATERIALIZED VIEW try_sums AS SELECT b, try_sum(a) AS sa, try_avg(d) AS ad, mean(a) AS ma, count_if(a > 1) AS ci FROM r GROUP BY b;
CREATE MATERIALIZED VIEW float_sums AS SELECT b, sum(x) AS sx, avg(x) AS ax FROM r GROUP BY b;
CREATE MATERIALIZED VIEW float_groups AS SELECT x, count(*) AS n, sum(a) AS sa FROM r GROUP BY x;
CREATE MATERIALIZED VIEW global_sums AS SELECT count(*) AS n, sum(a) AS sa, sum(x) AS sx, max(a) AS ma, min(d) AS md FROM r;
CREATE MATERIALIZED VIEW extremes AS SELECT b, min(a) AS mi, max(c) AS mc, min(x) AS mx, max(x) AS xx, max(d) AS md FROM r GROUP BY b;
CREATE MATERIALIZED VIEW extreme_structs AS SELECT b, min(struct(ts, id)) AS first, max(struct(e, id)).e AS last, max(day) AS day FROM s GROUP BY b;
CREATE MATERIALIZED VIEW extreme_arrays AS SELECT v, min(w) AS mi, max(p) AS ma FROM t GROUP BY v;
CREATE MATERIALIZED VIEW mixed AS SELECT b, sum(a) AS sa, max(a) AS ma, count(DISTINCT c) AS dc, sort_array(collect_set(c)) AS cs FROM r GROUP BY b;
CREATE MATERIALIZED VIEW moments AS
SELECT b, stddev_samp(a) AS s1, stddev_pop(d) AS s2, var_pop(d) AS s3, variance(a) AS s4, round(skewness(a), 9) AS s5, round(kurtosis(a), 9) AS s6, std(a) AS s7, var_samp(d) AS s8, stddev(d) AS s9
FROM r GROUP BY b;
CREATE MATERIALIZED VIEW regressions AS -- of small numbers: those of 1e8 leave no digit of a small intercept; 9 places, as 3 can be a tie
SELECT b, round(corr(a, d), 9) AS r1, round(covar_pop(a, d), 9) AS r2, round(covar_samp(a, d), 9) AS r3, round(regr_slope(a, d), 9) AS r4, round(regr_intercept(a, d), 9) AS r5,
  round(regr_r2(a, d), 9) AS r6, round(regr_sxy(a, d), 9) AS r7, regr_sxx(a, d) AS r8, regr_syy(a, d) AS r9, regr_count(a, d) AS r10,
  regr_avgx(a, d) AS r11, regr_avgy(a, d) AS r12
FROM (SELECT b, a, d % 3 AS d FROM r) GROUP BY b;
CREATE MATERIALIZED VIEW bits AS SELECT b, bit_and(a) AS ba, bit_or(a) AS bo, bit_xor(a) AS bx, bool_and(a > 0) AS la, bool_or(a > 1) AS lo, every(a IS NULL) AS ev, some(c = 'a') AS so, any(c = 'b') AS an FROM r GROUP BY b;
CREATE MATERIALIZED VIEW percentiles AS
SELECT b, percentile(a, 0.5) AS p1, percentile(d, array(0.1, 0.9)) AS p2, median(d) AS p3,
  percentile_cont(0.3) WITHIN GROUP (ORDER BY a) AS p4, percentile_disc(0.3) WITHIN GROUP (ORDER BY a DESC) AS p5, percentile(a, 0.5, 2) AS p6
FROM r GROUP BY b;
CREATE MATERIALIZED VIEW estimates AS SELECT b, approx_count_distinct(a) AS e1, approx_count_distinct(c) AS e2 FROM r GROUP BY b;
CREATE MATERIALIZED VIEW sketches AS SELECT hex(count_min_sketch(a, 0.5d, 0.5d, 1)) AS cms FROM r;
CREATE MATERIALIZED VIEW bitmaps AS SELECT b, bitmap_count(bitmap_construct_agg(bitmap_bit_position(id))) AS n FROM s GROUP BY b;
CREATE MATERIALIZED VIEW bitmaps_combined AS
SELECT b, bitmap_and_agg(q) AS z, bitmap_count(bitmap_or_agg(q)) AS n FROM (SELECT b, e, bitmap_construct_agg(bitmap_bit_position(id)) AS q FROM s GROUP BY b, e) GROUP BY b;
CREATE MATERIALIZED VIEW lists AS SELECT b, sort_array(collect_list(a)) AS la, sort_array(array_agg(c)) AS lc, sort_array(collect_set(x)) AS lx FROM r GROUP BY b;
CREATE MATERIALIZED VIEW joined_text AS SELECT b, listagg(c, '-') WITHIN GROUP (ORDER BY c) AS lc, string_agg(c, ',') WITHIN GROUP (ORDER BY c DESC) AS sc FROM r GROUP BY b;
CREATE MATERIALIZED VIEW at_extremes AS SELECT b, max_by(id, struct(ts, id)) AS mb, min_by(e, id) AS nb FROM s GROUP BY b;
CREATE MATERIALIZED VIEW modes AS SELECT b, mode() WITHIN GROUP (ORDER BY a) AS m1, mode() WITHIN GROUP (ORDER BY c DESC) AS m2 FROM r GROUP BY b;
CREATE MATERIALIZED VIEW distinct_rows AS SELECT DISTINCT a, b FROM r;
CREATE MATERIALIZED VIEW distinct_floats AS SELECT DISTINCT x FROM r;
CREATE MATERIALIZED VIEW distinct_counts AS
SELECT b, count(DISTINCT a) AS da, count(DISTINCT c) AS dc, sum(a) AS sa, count(DISTINCT a) FILTER (WHERE d > 0) AS fd, count(DISTINCT x) AS dx FROM r GROUP BY b;
CREATE MATERIALIZED VIEW distinct_sums AS SELECT b, sum(DISTINCT a) AS da, avg(DISTINCT a) AS aa, max(DISTINCT d) AS md, sum(DISTINCT d) AS dd FROM r GROUP BY b;
CREATE MATERIALIZED VIEW distinct_global AS SELECT count(DISTINCT a) AS da, count(DISTINCT a, c) AS dac, count(*) AS n FROM r;
CREATE MATERIALIZED VIEW distinct_others AS SELECT b, stddev(DISTINCT a) AS sa, bit_xor(DISTINCT a) AS bx, sort_array(collect_list(DISTINCT c)) AS lc, percentile(DISTINCT a, 0.5) AS pa FROM r GROUP BY b;
CREATE MATERIALIZED VIEW distinct_within AS SELECT b, count(DISTINCT a, c) FILTER (WHERE d > 0 OR x > 1) AS n, sum(DISTINCT a) FILTER (WHERE c = 'a') AS sa FROM r GROUP BY b;
CREATE MATERIALIZED VIEW filtered AS SELECT b, count(*) FILTER (WHERE a > 1) AS f1, sum(d) FILTER (WHERE c = 'a') AS f2, max(a) FILTER (WHERE d > 0) AS f3, avg(x) FILTER (WHERE x < 100) AS f4 FROM r GROUP BY b;
CREATE MATERIALIZED VIEW having_sum AS SELECT b, sum(a) AS sa FROM r GROUP BY b HAVING sum(a) > 3 AND count(*) > 1;
CREATE MATERIALIZED VIEW having_other AS SELECT b FROM r GROUP BY b HAVING max(a) = min(a) OR count(DISTINCT c) > 2;
CREATE MATERIALIZED VIEW having_global AS SELECT max(a) AS ma FROM r HAVING count(*) > 5;
CREATE MATERIALIZED VIEW cubed AS SELECT a, b, grouping_id() AS g, grouping(a) AS ga, sum(d) AS sd, count(*) AS n FROM r GROUP BY CUBE (a, b);
CREATE MATERIALIZED VIEW rolled AS SELECT a, c, max(d) AS sd, count(DISTINCT x) AS dx FROM r GROUP BY ROLLUP (a, c);
CREATE MATERIALIZED VIEW grouping_sets AS SELECT a, b, c, count(*) AS n, min(x) AS mx FROM r GROUP BY GROUPING SETS ((a, b), (c), ());
CREATE MATERIALIZED VIEW group_twice AS SELECT n, count(*) AS c FROM (SELECT b, count(*) AS n FROM r GROUP BY b) GROUP BY n;
CREATE MATERIALIZED VIEW group_thrice AS
SELECT max(c) AS mc, sum(m) AS sm FROM (SELECT m, count(*) AS c FROM (SELECT b, count(*) AS n, max(a) AS m FROM r GROUP BY b) GROUP BY m);
CREATE MATERIALIZED VIEW group_of_join AS SELECT s.e, sum(r.a) AS sa, count(*) AS n, max(r.a) AS ma FROM r JOIN s ON r.b = s.b GROUP BY s.e;
CREATE MATERIALIZED VIEW group_of_left AS SELECT s.id, count(r.a) AS n, max(r.c) AS mc FROM s LEFT JOIN r ON r.b = s.b GROUP BY s.id;
CREATE MATERIALIZED VIEW group_by_both AS SELECT r.c, s.e, max(r.a) AS ma, count(*) AS n FROM r JOIN s ON r.b = s.b GROUP BY r.c, s.e;
CREATE MATERIALIZED VIEW group_by_expression AS SELECT a % 2 AS p, date_trunc('MINUTE', s.ts) AS m, count(*) AS n FROM r JOIN s ON r.b = s.b GROUP BY 1, 2;
CREATE MATERIALIZED VIEW group_by_struct AS SELECT named_struct('a', a, 'b', b) AS st, count(*) AS n, min(c) AS mc FROM r GROUP BY named_struct('a', a, 'b', b);
CREATE MATERIALIZED VIEW group_by_array AS SELECT w, count(*) AS n, max(k) AS mk FROM t GROUP BY w;
CREATE MATERIALIZED VIEW group_by_date AS SELECT day, count(*) AS n, min(ts) AS mt FROM s GROUP BY day;
CREATE MATERIALIZED VIEW group_by_all AS SELECT c, count(*) AS n FROM r GROUP BY ALL;
CREATE MATERIALIZED VIEW group_by_subquery AS SELECT c, (SELECT count(*) FROM s) AS ns, count(a) AS n FROM r GROUP BY ALL;
CREATE MATERIALIZED VIEW group_by_subqueries AS
SELECT (SELECT max(id) FROM s) + b AS k, count(*) + (SELECT min(k) FROM t) AS n, sum((SELECT count(*) FROM t)) AS m FROM r GROUP BY 1;
CREATE MATERIALIZED VIEW group_without_function AS SELECT b FROM r GROUP BY b, c;
CREATE MATERIALIZED VIEW group_by_constant AS SELECT 1 AS one, count(*) AS n FROM r GROUP BY 1;
CREATE MATERIALIZED VIEW pivoted AS SELECT * FROM (SELECT b, c, a FROM r) PIVOT (sum(a) AS s, max(a) AS m FOR c IN ('a', 'b'));
CREATE MATERIALIZED VIEW unpivoted AS SELECT * FROM (SELECT id, b AS p, id * 2 AS q FROM s) UNPIVOT (v FOR n IN (p, q));
CREATE MATERIALIZED VIEW interval_sums AS SELECT b, sum(ts - TIMESTAMP'2026-01-01') AS st, max(make_dt_interval(0, 0, 0, id)) AS mi FROM s GROUP BY b;
CREATE MATERIALIZED VIEW expression_of_sums AS SELECT b + 1 AS b1, sum(a) * 2 + max(a) AS z, coalesce(min(c), 'none') AS mc FROM r GROUP BY b;
CREATE MATERIALIZED VIEW integer_sums AS SELECT v, sum(v) AS sv, sum(CAST(k AS SMALLINT)) AS sk, avg(CAST(k AS TINYINT)) AS ak FROM t GROUP BY v;
CREATE MATERIALIZED VIEW real_sums AS SELECT b, sum(CAST(a AS FLOAT)) AS sf, avg(CAST(x AS FLOAT)) AS af FROM r WHERE x < 100 GROUP BY b;
CREATE MATERIALIZED VIEW wide_decimals AS SELECT b, sum(CAST(d AS DECIMAL(38, 10))) AS sw, avg(CAST(d AS DECIMAL(30, 2))) AS aw, sum(d * d) AS sq FROM r GROUP BY b;
