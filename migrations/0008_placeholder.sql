-- Up Migration

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 8';

-- Down Migration

create or replace function fencepost.schema_version() returns integer
language sql immutable parallel safe as 'select 7';
