-- Of equal revisions of a usage record the first in the log counts, as on bills. Older rows have smaller versions and the
-- same content.

ALTER TABLE usage_records COMMENT COLUMN version 'revision * 2^43 + 2^43 - 1 - log_offset: of equal revisions the first';
