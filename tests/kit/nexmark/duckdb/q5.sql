WITH counts AS (
    SELECT auction, starttime, starttime + INTERVAL '10 seconds' AS endtime, count(*) AS num
    FROM (
        SELECT
            auction,
            time_bucket(INTERVAL '2 seconds', dateTime) - to_seconds(2 * unnest([0, 1, 2, 3, 4])) AS starttime
        FROM bid
    ) AS hops
    GROUP BY auction, starttime
),
most AS (
    SELECT starttime, endtime, max(num) AS maxn FROM counts GROUP BY starttime, endtime
)
SELECT c.starttime, c.auction, c.num
FROM counts c JOIN most m ON c.starttime = m.starttime AND c.endtime = m.endtime AND c.num >= m.maxn
