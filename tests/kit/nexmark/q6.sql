-- Average closing price of each seller's last ten auctions, at each of them (its id is told, so that rows can be told apart).
SELECT
    seller,
    id,
    avg(price) OVER (
        PARTITION BY seller ORDER BY dateTime, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
    ) AS average
FROM (
    SELECT
        a.id,
        a.seller,
        b.price,
        b.dateTime,
        row_number() OVER (PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.dateTime) AS place
    FROM auction a, bid b
    WHERE a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
) AS winning
WHERE place = 1
