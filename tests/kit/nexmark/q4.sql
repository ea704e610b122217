-- Average closing price of each category.
SELECT category, avg(final) AS average
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction a, bid b
    WHERE a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
    GROUP BY a.id, a.category
) AS closed
GROUP BY category
