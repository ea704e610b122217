-- The last bid of each bidder on each auction. All columns order, so that ties do not matter.
SELECT auction, bidder, price, channel, url, dateTime, extra
FROM (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY bidder, auction ORDER BY dateTime DESC, price DESC, channel, url, extra
        ) AS place
    FROM bid
) AS ranked
WHERE place <= 1
