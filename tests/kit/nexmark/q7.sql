-- The highest bids of each window of 10 seconds; a bid at a window's end counts for it, too, as in the original.
WITH highest AS (
    SELECT max(price) AS maxprice, window.end AS endtime
    FROM bid
    GROUP BY window(dateTime, '10 seconds')
)
SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
FROM bid b JOIN highest h ON b.price = h.maxprice
WHERE b.dateTime BETWEEN h.endtime - INTERVAL '10' SECOND AND h.endtime
