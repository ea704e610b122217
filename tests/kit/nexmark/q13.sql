-- Bids with a value from a side input: a table like the others here, whose changes reach bids that are there already.
SELECT b.auction, b.bidder, b.price, b.dateTime, s.value
FROM bid b JOIN side_input s ON mod(b.auction, 10000) = s.key
