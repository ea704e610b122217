WITH gaps AS (
    SELECT
        bidder,
        dateTime,
        coalesce(dateTime >= lag(dateTime) OVER bids + INTERVAL '10 seconds', true) AS is_first
    FROM bid
    WINDOW bids AS (PARTITION BY bidder ORDER BY dateTime)
),
sessions AS (
    SELECT
        bidder,
        dateTime,
        count(*) FILTER (WHERE is_first) OVER (
            PARTITION BY bidder ORDER BY dateTime, is_first DESC ROWS UNBOUNDED PRECEDING
        ) AS session
    FROM gaps
)
SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime, max(dateTime) + INTERVAL '10 seconds' AS endtime
FROM sessions
GROUP BY bidder, session
