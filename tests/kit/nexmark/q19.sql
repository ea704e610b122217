-- The ten highest bids of each auction. All columns order, so that ties do not matter.
SELECT *
FROM (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY auction ORDER BY price DESC, dateTime, bidder, channel, url, extra
        ) AS rank_number
    FROM bid
) AS ranked
WHERE rank_number <= 10
