-- A closed bill may have no lines: a row with line 0 says that it is closed, and is no line to readers.

CREATE OR REPLACE VIEW invoice_lines
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT * EXCEPT (log_partition, log_offset, version, first_offset) FROM
(
    SELECT *, min(log_offset) OVER (PARTITION BY account_id, period) AS first_offset FROM invoice_rows FINAL
)
WHERE log_offset = first_offset AND line > 0
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'The lines of closed bills, each once; the sum of the amounts of an account and period is its total';
