SELECT
    bidder,
    count(*) AS bid_count,
    time_bucket(INTERVAL '10 seconds', dateTime) AS starttime,
    time_bucket(INTERVAL '10 seconds', dateTime) + INTERVAL '10 seconds' AS endtime
FROM bid
GROUP BY bidder, starttime, endtime
