-- Small-quantity orders. Brands and containers by how they begin (Brand#23, MED BOX).
SELECT sum(l_extendedprice) / 7.0 AS avg_yearly
FROM lineitem, part
WHERE p_partkey = l_partkey
    AND p_brand LIKE 'Brand#2%'
    AND p_container LIKE 'MED %'
    AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)
