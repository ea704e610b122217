WITH highest AS (
    SELECT max(price) AS maxprice, time_bucket(INTERVAL '10 seconds', dateTime) + INTERVAL '10 seconds' AS endtime
    FROM bid
    GROUP BY endtime
)
SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
FROM bid b JOIN highest h ON b.price = h.maxprice
WHERE b.dateTime BETWEEN h.endtime - INTERVAL '10' SECOND AND h.endtime
