"""The functions of DuckDB that a query may call: a table of all of DuckDB's functions, reviewed one by one.

The rule is that of `evertide.plan.query.functions`: a function is allowed if its result depends only on its arguments,
the clock, randomness and the time zone. A function is refused if it can reach anything else (files, addresses, the
engine, its catalog, its memory), or if it only takes time.

A query that calls a function that is not in the table is left to Spark, if Spark may answer it. A test compares the
table with `duckdb_functions()`, so a new version of DuckDB fails the test until its new functions are reviewed. PRAGMA
functions cannot occur in a SELECT.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_OPERATORS = """
!= !__postfix !~~ !~~* % & && * ** + - ->> / // < <-> << <= <=> <@ = > >= >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~ ->
"""
_WORDS = ("IS DISTINCT FROM", "IS NOT DISTINCT FROM")
_NUMBERS = """
abs acos acosh add asin asinh atan atan2 atanh bin binom bit_count bit_length bit_position bitstring cbrt ceil ceiling
cos cosh cot decimal_division degrees divide even exp factorial fdiv floor fmod gamma gcd get_bit greatest
greatest_common_divisor hex isfinite isinf isnan lcm least least_common_multiple lgamma ln log log10 log2 mod multiply
nextafter pi pow power radians round round_even roundbankers set_bit sign signbit sin sinh sqrt subtract tan tanh
to_base trunc unbin unhex xor
"""
_TEXTS = """
ascii bar base64 char_length character_length chr concat concat_ws contains damerau_levenshtein decode editdist3 encode
ends_with format formatReadableDecimalSize formatReadableSize format_bytes from_base64 from_binary from_hex hamming
ilike_escape instr jaccard jaro_similarity jaro_winkler_similarity lcase left left_grapheme len length length_grapheme
levenshtein like_escape lower lpad ltrim mismatches nfc_normalize not_ilike_escape not_like_escape octet_length ord
overlay parse_dirname parse_dirpath parse_filename parse_formatted_bytes parse_path path_join pg_size_pretty position
prefix printf regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace
regexp_split_to_array regexp_split_to_table repeat replace reverse right right_grapheme rpad rtrim split split_part
starts_with str_split str_split_regex string_split string_split_regex string_to_array strip_accents strlen strpos substr
substring substring_grapheme suffix to_base64 to_binary to_hex translate trim ucase unicode upper url_decode url_encode
hive_partition_component
"""
_HASHES = "hash md5 md5_number md5_number_lower md5_number_upper sha1 sha256"
_LOCALES = """
aa af am ar ar_sa as az bal be bg blo bn bo br bs ca ceb chr cs cu cy da de de_at dsb dz ee el en en_us eo es et fa
fa_af ff fi fil fo fr fr_ca fy ga gl gu ha haw he he_il hi hr hsb hu hy id id_id ig is it ja ka kk kl km kn ko kok ku ky
lb lij lkt ln lo lt lv mk ml mn mr ms mt my nb nb_no ne nl nn no noaccent nso om or pa pa_in pl ps pt ro ru sa se sgs si
sk sl smn sq sr sr_ba sr_me sr_rs ssy st sv sw ta te th tk tn to tr ug uk ur uz vi vo wae wo xh yi yo zh zh_cn zh_hk
zh_mo zh_sg zh_tw zu
"""
"""Each has the functions `collate_` and `icu_collate_`."""
_TIMES = """
age ago century current_date current_localtime current_localtimestamp date_add date_diff date_part date_sub date_trunc
datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms
epoch_ns epoch_us era get_current_time get_current_timestamp hour isodow isoyear julian last_day make_date make_time
make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz microsecond millennium millisecond minute month
monthname nanosecond normalized_interval now quarter second strftime strptime time_bucket timezone timezone_hour
timezone_minute to_centuries to_days to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes
to_months to_quarters to_seconds to_timestamp to_weeks to_years today transaction_timestamp try_strptime week weekday
weekofyear year yearweek
"""
_LISTS = """
aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains
array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct array_dot_product
array_extract array_filter array_grade_up array_has array_has_all array_has_any array_indexof array_inner_product
array_intersect array_length array_negative_dot_product array_negative_inner_product array_pop_back array_pop_front
array_position array_prepend array_push_back array_push_front array_reduce array_resize array_reverse array_reverse_sort
array_select array_slice array_sort array_to_string array_to_string_comma_default array_transform array_unique
array_value array_where array_zip cardinality element_at filter flatten generate_series generate_subscripts grade_up
invoke list_aggr list_aggregate list_any_value list_append list_apply list_approx_count_distinct list_avg list_bit_and
list_bit_or list_bit_xor list_bool_and list_bool_or list_cat list_concat list_contains list_cosine_distance
list_cosine_similarity list_count list_distance list_distinct list_dot_product list_element list_entropy list_extract
list_filter list_first list_grade_up list_has list_has_all list_has_any list_histogram list_indexof list_inner_product
list_intersect list_kurtosis list_kurtosis_pop list_last list_mad list_max list_median list_min list_mode
list_negative_dot_product list_negative_inner_product list_pack list_position list_prepend list_product list_reduce
list_resize list_reverse list_reverse_sort list_select list_sem list_skewness list_slice list_sort list_stddev_pop
list_stddev_samp list_string_agg list_sum list_transform list_unique list_value list_var_pop list_var_samp list_where
list_zip map map_concat map_contains map_contains_entry map_contains_value map_entries map_extract map_extract_value
map_from_entries map_keys map_values range reduce remap_struct row struct_concat struct_contains struct_extract
struct_extract_at struct_has struct_indexof struct_insert struct_keys struct_pack struct_position struct_update
struct_values union_extract union_tag union_value unnest unpivot_list vertex_extract
"""
"""`list_aggregate` and similar functions call an aggregate by its name in a text; all aggregates are allowed."""
_JSON = """
array_to_json from_json from_json_strict json json_array json_array_length json_contains json_copy_strftime_if_date
json_copy_strftime_if_timestamp json_deep_merge json_exists json_extract json_extract_path json_extract_path_text
json_extract_string json_group_array json_group_object json_group_structure json_insert json_keys json_merge_patch
json_merge_patch_diff json_normalize json_object json_pretty json_quote json_remove json_replace json_set
json_strip_nulls json_structure json_transform json_transform_strict json_type json_valid json_value row_to_json to_json
variant_array_length variant_contains variant_exists variant_extract variant_extract_string variant_group_array
variant_keys variant_normalize variant_type variant_typeof
"""
_GEOMETRY = """
st_asbinary st_asgeojson st_astext st_aswkb st_aswkt st_crs st_geomfromgeojson st_geomfromwkb st_intersects_extent
st_setcrs
"""
_CONDITIONS = "assert_true constant_or_null error if nullif switch"
"""Some make the query fail with a message that the query contains."""
_TYPES = """
alias bitstring_byte_comparable can_cast_implicitly cast_to_type create_sort_key enum_code enum_first enum_last
enum_range enum_range_boundary get_type icu_sort_key make_type pg_typeof replace_type timetz_byte_comparable typeof
variant_comparator
"""
_RANDOMNESS = "gen_random_uuid random setseed uuid uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7"
_AGGREGATES = """
any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last arg_min
arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or bit_xor bitstring_agg bool_and bool_or corr
count count_if count_star countif covar_pop covar_samp decimal_average entropy equi_width_bins favg first fsum geomean
geometric_mean group_concat histogram histogram_exact is_histogram_other_bin kahan_sum kurtosis kurtosis_pop last list
listagg lttb mad max max_by mean median min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy
regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev
stddev_pop stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance variant_group_object wavg
weighted_avg
"""
_WINDOWS = """
cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense row_number
"""
ALLOWED = frozenset(
    (
        *_WORDS,
        *(
            name
            for names in (
                *(_OPERATORS, _NUMBERS, _TEXTS, _HASHES, _TIMES, _LISTS, _JSON, _GEOMETRY, _CONDITIONS, _TYPES),
                *(_RANDOMNESS, _AGGREGATES, _WINDOWS),
            )
            for name in names.split()
        ),
        *(f"{kind}_{locale}" for kind in ("collate", "icu_collate") for locale in _LOCALES.split()),
    )
)
"""Allowed in an expression; spelled as in `duckdb_functions()`."""
ALLOWED_IN_FROM = frozenset(("generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"))
"""Their rows depend only on their arguments."""


def _refuse_all(why: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


_OF_ENGINE = "it returns facts about the engine, not about tables and views"
_OF_CATALOG = "it reads the engine's catalog, not tables and views"
_CHANGES = "it changes the state of the engine"
_READS = "it reads files or addresses"
_RUNS = "it runs or parses another statement"
_MEMORY = "it interprets bytes as the engine's internal state"
_WAITS = "it only waits"
_INTERNAL = "it is internal to the engine"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **_refuse_all(
            _OF_ENGINE,
            """
            current_catalog current_connection_id current_database current_query current_query_id current_role
            current_schema current_schemas current_setting current_transaction_id current_user get_block_size
            getvariable inet_client_addr inet_client_port inet_server_addr inet_server_port parse_duckdb_log_message
            pg_conf_load_time pg_postmaster_start_time session_user stats txid_current user vector_type version
            """,
        ),
        **_refuse_all(
            _OF_CATALOG,
            """
            col_description format_pg_type format_type has_any_column_privilege has_column_privilege
            has_database_privilege has_foreign_data_wrapper_privilege has_function_privilege has_language_privilege
            has_schema_privilege has_sequence_privilege has_server_privilege has_table_privilege
            has_tablespace_privilege in_search_path index_key map_to_pg_oid obj_description pg_collation_is_visible
            pg_conversion_is_visible pg_function_is_visible pg_get_constraintdef pg_get_expr pg_get_viewdef pg_has_role
            pg_is_other_temp_schema pg_my_temp_schema pg_opclass_is_visible pg_operator_is_visible
            pg_opfamily_is_visible pg_table_is_visible pg_ts_config_is_visible pg_ts_dict_is_visible
            pg_ts_parser_is_visible pg_ts_template_is_visible pg_type_is_visible shobj_description
            """,
        ),
        **_refuse_all(_CHANGES, "currval nextval setval write_log"),
        **_refuse_all(_RUNS, "json_deserialize_sql json_serialize_plan json_serialize_sql"),
        **_refuse_all(
            _MEMORY,
            "combine combine_aggr finalize to_aggregate_state variant_bytes_to_variant variant_to_parquet_variant",
        ),
        **_refuse_all(_WAITS, "pg_sleep sleep_ms"),
        **_refuse_all(
            _INTERNAL,
            """
            __between __cast __internal_barrier __internal_compress_geometry_point
            __internal_compress_integral_ubigint __internal_compress_integral_uinteger
            __internal_compress_integral_usmallint __internal_compress_integral_utinyint
            __internal_compress_string_hugeint __internal_compress_string_ubigint __internal_compress_string_uhugeint
            __internal_compress_string_uinteger __internal_compress_string_usmallint
            __internal_compress_string_utinyint __internal_compressed_materialization_cast
            __internal_decompress_geometry_point __internal_decompress_integral_bigint
            __internal_decompress_integral_hugeint __internal_decompress_integral_integer
            __internal_decompress_integral_smallint __internal_decompress_integral_ubigint
            __internal_decompress_integral_uhugeint __internal_decompress_integral_uinteger
            __internal_decompress_integral_usmallint __internal_decompress_string __internal_json_copy_to_geojson
            __internal_json_copy_to_json __internal_tablefilter_bloom_filter __internal_tablefilter_dynamic
            __internal_tablefilter_optional __internal_tablefilter_prefix_range
            __internal_tablefilter_selectivity_optional
            """,
        ),
    }
)
"""Refused in an expression, by name, with the reason."""
REFUSED_IN_FROM: Mapping[str, str] = MappingProxyType(
    {
        **_refuse_all(
            _READS,
            """
            arrow_scan arrow_scan_dumb glob pandas_scan parquet_bloom_probe parquet_file_metadata parquet_full_metadata
            parquet_kv_metadata parquet_metadata parquet_scan parquet_schema python_arrow_scan read_blob read_csv
            read_csv_auto read_duckdb read_json read_json_auto read_json_objects read_json_objects_auto read_ndjson
            read_ndjson_auto read_ndjson_objects read_parquet read_single_csv_file read_single_json_file
            read_single_parquet_file read_text sniff_csv
            """,
        ),
        **_refuse_all(
            _RUNS, "histogram histogram_values json_execute_serialized_sql python_map_function query query_table"
        ),
        **_refuse_all(
            _CHANGES,
            """
            checkpoint create_external_resource deregister_external_resource destroy_external_resource disable_logging
            disable_profiling enable_logging enable_profiling force_checkpoint register_external_resource
            register_external_resource_type truncate_duckdb_logs
            """,
        ),
        **_refuse_all(
            _OF_CATALOG,
            """
            duckdb_approx_database_count duckdb_available_metrics duckdb_columns duckdb_connection_count
            duckdb_constraints duckdb_coordinate_systems duckdb_databases duckdb_dependencies duckdb_dialects
            duckdb_eviction_queues duckdb_extension_repositories duckdb_extensions duckdb_external_file_cache
            duckdb_external_resource_types duckdb_external_resources duckdb_functions duckdb_grammar_extensions
            duckdb_indexes duckdb_keywords duckdb_log_contexts duckdb_logs duckdb_logs_parsed duckdb_memory
            duckdb_optimizers duckdb_prepared_statements duckdb_profiling_settings duckdb_schemas
            duckdb_secret_type_parameters duckdb_secret_types duckdb_secrets duckdb_sequences duckdb_settings
            duckdb_table_sample duckdb_tables duckdb_temporary_files duckdb_triggers duckdb_types duckdb_variables
            duckdb_views icu_calendar_names pg_timezone_names pragma_collations pragma_database_size
            pragma_metadata_info pragma_platform pragma_show pragma_storage_info pragma_table_info pragma_user_agent
            pragma_version seq_scan summary test_all_types test_vector_types which_secret
            """,
        ),
    }
)
