"""The functions of Spark that a query may call; all functions of Spark were reviewed one by one.

Any client with a token to read can send a query. So a function is allowed if its result depends only on its arguments,
the clock, randomness and result settings. A function is refused if it can access anything else: a file, an address,
code, the server, the catalog. Each refused function has its reason here.

A function that is not in the table is refused. A test compares the table with `SHOW FUNCTIONS`, so a new version of
Spark fails it until its new functions are reviewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_OPERATORS = """
! != % & * + - / < << <= <=> <> = == > >= >> >>> ^ and between case cast div in not or when | || ~
"""
_CASTS = "bigint binary boolean date decimal double float int smallint string time timestamp tinyint"
_NUMBERS = """
abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees e exp expm1
factorial floor greatest hex hypot isnan least ln log log10 log1p log2 mod nanvl negative pi pmod positive pow power
radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh try_add try_divide
try_mod try_multiply try_subtract unhex width_bucket bit_count bit_get getbit
"""
_TEXTS = """
ascii base64 bit_length btrim char char_length character_length chr collate collation concat concat_ws contains decode
elt encode endswith find_in_set format_number format_string from_base32 ilike initcap instr is_valid_utf8
jaro_winkler_similarity lcase left len length levenshtein like locate lower lpad ltrim luhn_check make_valid_utf8 mask
octet_length overlay parse_url position printf quote regexp regexp_count regexp_extract regexp_extract_all regexp_instr
regexp_like regexp_replace regexp_substr repeat replace reverse right rlike rpad rtrim sentences soundex space split
split_part startswith str_to_map substr substring substring_index to_base32 to_binary to_char to_number to_varchar
translate trim try_parse_url try_to_binary try_to_number try_url_decode try_validate_utf8 ucase unbase64 upper
url_decode url_encode validate_utf8
"""
_HASHES = "aes_decrypt aes_encrypt crc32 hash hmac md5 sha sha1 sha2 try_aes_decrypt xxhash64"
_TIMES = """
add_months convert_timezone curdate current_date current_time current_timestamp current_timezone date_add date_diff
date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek
dayofyear extract from_unixtime from_utc_timestamp hour last_day localtime localtimestamp make_date make_dt_interval
make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname
months_between next_day now quarter second session_window time_bucket time_diff time_from_micros time_from_millis
time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp_micros timestamp_millis
timestamp_nanos timestamp_seconds to_date to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
to_utc_timestamp trunc try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_to_date
try_to_time try_to_timestamp unix_date unix_micros unix_millis unix_nanos unix_seconds unix_timestamp weekday weekofyear
window window_time year
"""
_NESTED = """
aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union
arrays_overlap arrays_zip cardinality element_at exists explode explode_outer filter flatten forall get inline
inline_outer map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values
map_zip_with named_struct posexplode posexplode_outer reduce sequence shuffle size slice sort_array stack struct
transform transform_keys transform_values try_element_at vector_avg vector_cosine_similarity vector_inner_product
vector_l2_distance vector_norm vector_normalize vector_sum zip_with
"""
_DOCUMENTS = """
from_csv from_json get_json_object is_valid_variant is_variant_null json_array_length json_object_keys json_tuple
parse_json schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg to_csv to_json to_variant_object to_xml
try_parse_json try_variant_array_append try_variant_get try_variant_insert try_variant_set variant_array_append
variant_delete variant_get variant_insert variant_set variant_strip_nulls
"""
_PLACES = "st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid"
_CONDITIONS = """
any coalesce equal_null every if ifnull isnotnull isnull nullif nullifzero nvl nvl2 some typeof zeroifnull
"""
_ERRORS = "assert_true raise_error"
"""They fail the query with a given text."""
_RANDOM_FUNCTIONS = "rand randn random randstr uniform uuid"
_ROWS = "monotonically_increasing_id spark_partition_id"
"""They show how Spark partitioned the rows, but not where they are."""
_AGGREGATES = """
any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
approx_top_k_estimate array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or collect_list collect_set collect_union corr count
count_if count_min_sketch counter_diff covar_pop covar_samp cume_dist dense_rank first first_value grouping grouping_id
histogram_numeric kurtosis lag last last_value lead listagg max max_by mean measure median min min_by mode nth_value
ntile percent_rank percentile percentile_approx percentile_cont percentile_disc rank regr_avgx regr_avgy regr_count
regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy row_number skewness std stddev stddev_pop stddev_samp
string_agg sum try_avg try_sum var_pop var_samp variance
"""
_SKETCHES = """
hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double
kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint
kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
kll_sketch_to_string_float theta_difference theta_intersection theta_intersection_agg theta_sketch_agg
theta_sketch_estimate theta_union theta_union_agg tuple_difference_double tuple_difference_integer
tuple_difference_theta_double tuple_difference_theta_integer tuple_intersection_agg_double
tuple_intersection_agg_integer tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer tuple_sketch_estimate_double
tuple_sketch_estimate_integer tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
tuple_sketch_theta_integer tuple_union_agg_double tuple_union_agg_integer tuple_union_double tuple_union_integer
tuple_union_theta_double tuple_union_theta_integer
"""
ALLOWED = frozenset(
    name
    for names in (
        *(_OPERATORS, _CASTS, _NUMBERS, _TEXTS, _HASHES, _TIMES, _NESTED, _DOCUMENTS, _PLACES, _CONDITIONS, _ERRORS),
        *(_RANDOM_FUNCTIONS, _ROWS, _AGGREGATES, _SKETCHES),
    )
    for name in names.split()
)
"""Functions in expressions."""
_IN_FROM = """
collations explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range sql_keywords stack
variant_explode variant_explode_outer
"""
ALLOWED_IN_FROM = frozenset(_IN_FROM.split())
"""Functions in FROM: they produce rows from their arguments, or from constants of Spark."""

CONSTRUCTS = frozenset(("all", "distinct", "identifier", "timediff", "timestampadd", "timestampdiff", "try_cast"))
"""What the parser reads itself, though it looks like a call."""

_CALLS_CODE = "the function calls code by name"
_NAMES_FILES = "its options or arguments can name files or addresses that the server would read"
_FETCHES = "its parser reads the DTD that a document names"
_OF_FILES = "the function shows names of files on the server"
_OF_SERVER = "the function shows facts about the server"
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("java_method", "reflect", "try_reflect"), _CALLS_CODE),
        **dict.fromkeys(("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"), _NAMES_FILES),
        **dict.fromkeys(("from_xml", "schema_of_xml"), _NAMES_FILES),
        **dict.fromkeys(
            (
                *("xpath", "xpath_boolean", "xpath_double", "xpath_float", "xpath_int", "xpath_long", "xpath_number"),
                *("xpath_short", "xpath_string"),
            ),
            _FETCHES,
        ),
        **dict.fromkeys(("input_file_block_length", "input_file_block_start", "input_file_name"), _OF_FILES),
        **dict.fromkeys(
            (
                *("current_catalog", "current_database", "current_path", "current_schema", "current_user"),
                *("python_worker_logs", "session_user", "user", "version"),
            ),
            _OF_SERVER,
        ),
    }
)
