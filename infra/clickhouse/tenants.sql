-- Users of tenants: each sees the rows of its own account and no others. For a ClickHouse server with access control;
-- run as a user with ACCESS MANAGEMENT. A tenant's user is called tenant_ACCOUNT.
--
-- A policy is RESTRICTIVE: permissive ones add up, so that a second one would show more. With none a user sees all rows,
-- so the role gets its rights on a view after the policy on it is there. `retention` and `funnel` are about all accounts,
-- and are not for tenants.

CREATE SETTINGS PROFILE IF NOT EXISTS turnlog_tenant SETTINGS readonly = 2, max_execution_time = 30, max_memory_usage = 2000000000, session_timezone = 'UTC' CONST;
CREATE QUOTA IF NOT EXISTS turnlog_tenant KEYED BY user_name FOR INTERVAL 1 hour MAX queries = 2000, execution_time = 1800 TO turnlog_tenant;
CREATE ROLE IF NOT EXISTS turnlog_tenant SETTINGS PROFILE 'turnlog_tenant';

CREATE ROW POLICY IF NOT EXISTS turnlog_tenant ON turnlog.billing, turnlog.usage_daily, turnlog.usage_hourly, turnlog.messages, turnlog.conversations, turnlog.generation_stats, turnlog.failures, turnlog.cancellations, turnlog.regenerations, turnlog.account_activity, turnlog.invoice_lines
FOR SELECT USING account_id = substring(currentUser(), length('tenant_') + 1) AS RESTRICTIVE TO turnlog_tenant;

-- For everybody else the policies above change nothing.
CREATE ROW POLICY IF NOT EXISTS turnlog_everybody ON turnlog.billing, turnlog.usage_daily, turnlog.usage_hourly, turnlog.messages, turnlog.conversations, turnlog.generation_stats, turnlog.failures, turnlog.cancellations, turnlog.regenerations, turnlog.account_activity, turnlog.invoice_lines
FOR SELECT USING 1 AS PERMISSIVE TO ALL;

GRANT SELECT ON turnlog.billing TO turnlog_tenant;
GRANT SELECT ON turnlog.usage_daily TO turnlog_tenant;
GRANT SELECT ON turnlog.usage_hourly TO turnlog_tenant;
GRANT SELECT ON turnlog.messages TO turnlog_tenant;
GRANT SELECT ON turnlog.conversations TO turnlog_tenant;
GRANT SELECT ON turnlog.generation_stats TO turnlog_tenant;
GRANT SELECT ON turnlog.failures TO turnlog_tenant;
GRANT SELECT ON turnlog.cancellations TO turnlog_tenant;
GRANT SELECT ON turnlog.regenerations TO turnlog_tenant;
GRANT SELECT ON turnlog.account_activity TO turnlog_tenant;
GRANT SELECT ON turnlog.invoice_lines TO turnlog_tenant;

-- One user for each tenant; its name says which account it sees.
CREATE USER IF NOT EXISTS tenant_acme IDENTIFIED BY 'change me' DEFAULT ROLE turnlog_tenant;
GRANT turnlog_tenant TO tenant_acme;
