-- Hot items: the auctions with the most bids in each window of 10 seconds, every 2 seconds.
WITH counts AS (
    SELECT auction, window.start AS starttime, window.end AS endtime, count(*) AS num
    FROM bid
    GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
),
most AS (
    SELECT starttime, endtime, max(num) AS maxn FROM counts GROUP BY starttime, endtime
)
SELECT c.starttime, c.auction, c.num
FROM counts c JOIN most m ON c.starttime = m.starttime AND c.endtime = m.endtime AND c.num >= m.maxn
