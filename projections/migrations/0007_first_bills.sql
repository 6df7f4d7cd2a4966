-- A bill is what was closed first, whatever was said again for its month; lines may take away what moved elsewhere.

ALTER TABLE invoice_rows MODIFY COLUMN records Int64
    COMMENT 'Records more than the bills before had of this; negative where they moved elsewhere';

CREATE OR REPLACE VIEW invoice_lines AS
SELECT * EXCEPT (log_partition, log_offset, version, first_offset) FROM
(
    SELECT *, min(log_offset) OVER (PARTITION BY account_id, period) AS first_offset FROM invoice_rows FINAL
)
WHERE log_offset = first_offset
COMMENT 'The lines of closed bills, each once; the sum of the amounts of an account and period is its total';
