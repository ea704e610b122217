-- Bids of each user per window of 10 seconds: of the event's time, where the original takes the time of processing.
SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime
FROM bid
GROUP BY bidder, window(dateTime, '10 seconds')
