-- What `evertide demo` runs: an auction house (Nexmark), and views that touch every family of operators.
-- It is a script like any other: evertide explain demo.sql, evertide run demo.sql --storage DIR.

CREATE TABLE person (
    id BIGINT NOT NULL,
    name STRING,
    city STRING,
    state STRING,
    dateTime TIMESTAMP NOT NULL,
    PRIMARY KEY (id)
) USING nexmark OPTIONS (rate '2000', events_per_transaction '10000');

CREATE TABLE auction (
    id BIGINT NOT NULL,
    itemName STRING,
    initialBid BIGINT NOT NULL,
    dateTime TIMESTAMP NOT NULL,
    expires TIMESTAMP NOT NULL,
    seller BIGINT NOT NULL,
    category BIGINT NOT NULL,
    PRIMARY KEY (id)
) USING nexmark;

CREATE TABLE bid (
    auction BIGINT NOT NULL,
    bidder BIGINT NOT NULL,
    price BIGINT NOT NULL,
    channel STRING,
    dateTime TIMESTAMP NOT NULL
) USING nexmark;

-- Filter and map: large bids, in euros.
CREATE MATERIALIZED VIEW large_bids AS
SELECT auction, bidder, CAST(price AS DECIMAL(20, 2)) * 0.908 AS euros, upper(channel) AS channel, dateTime
FROM bid
WHERE price > 50000000;

-- Inner join: sellers in a category, in three states.
CREATE MATERIALIZED VIEW local_sellers AS
SELECT p.name, p.city, p.state, a.id AS auction
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');

-- Aggregate of an aggregate over a join: the average closing price of each category.
CREATE MATERIALIZED VIEW category_prices AS
SELECT category, avg(final) AS average, count(*) AS auctions
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
    GROUP BY a.id, a.category
) AS closed
GROUP BY category;

-- Hopping windows: the auctions with the most bids in 10 seconds, every 2 seconds.
CREATE MATERIALIZED VIEW hot_items AS
WITH counts AS (
    SELECT auction, window.start AS starts, count(*) AS bids
    FROM bid
    GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
),
most AS (
    SELECT starts, max(bids) AS bids FROM counts GROUP BY starts
)
SELECT c.starts, c.auction, c.bids
FROM counts c JOIN most m ON c.starts = m.starts AND c.bids = m.bids;

-- The first rows of each group: the three highest bids of each auction.
CREATE MATERIALIZED VIEW top_bids AS
SELECT auction, place, price, bidder, dateTime
FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime, bidder, channel) AS place
    FROM bid
) AS ranked
WHERE place <= 3;

-- Distinct values, counted.
CREATE MATERIALIZED VIEW channels AS
SELECT
    CASE WHEN channel LIKE 'channel-%' THEN 'others' ELSE channel END AS channel,
    count(*) AS bids, 
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT auction) AS auctions
FROM bid
GROUP BY 1;

-- Anti join: auctions without bids.
CREATE MATERIALIZED VIEW unwanted AS
SELECT a.id, a.itemName, a.seller
FROM auction a
WHERE NOT EXISTS (SELECT 1 FROM bid b WHERE b.auction = a.id);

-- Outer join: people, and how many auctions they opened, also if none.
CREATE MATERIALIZED VIEW sellers AS
SELECT p.id, p.name, count(a.id) AS auctions, sum(a.initialBid) AS asked
FROM person p LEFT JOIN auction a ON a.seller = p.id
GROUP BY p.id, p.name;

-- A window function: how each auction of a seller compares with the one before it.
CREATE MATERIALIZED VIEW seller_steps AS
SELECT
    seller,
    id,
    initialBid,
    initialBid - lag(initialBid) OVER (PARTITION BY seller ORDER BY dateTime, id) AS step,
    sum(initialBid) OVER (PARTITION BY seller ORDER BY dateTime, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS last_ten
FROM auction;
