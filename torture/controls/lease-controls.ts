import type { Control } from './control.ts'

const acquire = 'fencepost.acquire(text[],uuid,bigint,text,boolean,boolean,bigint,bigint,bigint,bigint[])'
const acquireBatch = 'fencepost.acquire_batch(text[],uuid,bigint,text,boolean,boolean,bigint,bigint,bigint)'
const release = 'fencepost.release(text[],bigint[],uuid)'
const releaseBatch = 'fencepost.release_batch(text[],bigint[],uuid)'
const beat = 'fencepost.beat(uuid)'

const isMyTerm = 'l.name = p_names[1] and l.token = p_tokens[1] and l.holder_id = p_holder'

/** Grants, heartbeats and releases that do what they like to the terms of others. */
export const leaseControls: readonly Control[] = [
  {
    name: 'acquire-without-lock',
    without:
      'the row lock of acquire: it reads that a lease is free and then takes it, as do others who have read the same.',
    caughtAs: ['terms-overlap'],
    mode: 'safety',
    provocation: { clients: 5, leases: 4, ttlMs: 1000, faults: [] },
    functions: {
      [acquire]: [
        {
          out: '       for update of l skip locked)\n  select array_agg(s.name) into v_free',
          in: '       )\n  select array_agg(s.name) into v_free',
        },
        {
          out: '         for update of l skip locked)\n    select array_agg(s.name), array_agg(distinct s.expired)',
          in: '         )\n    select array_agg(s.name), array_agg(distinct s.expired)',
        },
      ],
      [acquireBatch]: [
        {
          out: '       for update of l skip locked\n       for key share of h skip locked;',
          in: '       for key share of h skip locked;',
        },
        {
          out: '         for update of l skip locked)\n    select count(*) into v_locked',
          in: '         )\n    select count(*) into v_locked',
        },
      ],
    },
  },
  {
    name: 'renewal-by-name',
    without: "the holder's identity in its heartbeat: every holder of the name is renewed, ended or not.",
    caughtAs: ['holder-revived'],
    mode: 'safety',
    provocation: { clients: 4, leases: 2, ttlMs: 500, faults: [] },
    functions: {
      [beat]: [
        {
          out: 'update holder set expires_at = clock_timestamp() + ttl\n   where id = p_id and ended_at is null;',
          in:
            'update holder set expires_at = clock_timestamp() + ttl, ended_at = null\n' +
            '   where label = (select h.label from holder h where h.id = p_id);',
        },
      ],
    },
  },
  {
    name: 'release-without-token',
    without: 'the token of a release: it frees the lease of that name, whoever holds it.',
    caughtAs: ['freed-by-another'],
    mode: 'safety',
    provocation: { clients: 4, leases: 2, ttlMs: 500, faults: [] },
    functions: {
      [release]: [
        { out: isMyTerm, in: 'l.name = p_names[1]', times: 2 },
        {
          out: 'where l.token = r.token and l.holder_id = p_holder\n     order by l.name',
          in: 'order by l.name',
        },
      ],
      [releaseBatch]: [
        { out: isMyTerm, in: 'l.name = p_names[1]' },
        { out: ' and l.token = (v_tokens ->> l.name)::bigint and l.holder_id = p_holder', in: '' },
      ],
    },
  },
  {
    name: 'counter-in-the-lease',
    without:
      'the memory of the token sequence: the next token is one more than the greatest in a lease row, and the rows of free leases are deleted.',
    caughtAs: ['token-given-twice', 'token-fell'],
    mode: 'safety',
    provocation: { clients: 3, leases: 6, ttlMs: 500, faults: [] },
    functions: {
      'fencepost.draw_tokens(text,integer)': [
        {
          out:
            '    update fencepost.token_sequence s set last_token = fencepost.token_base(s.last_token, s.follows_clock) + p_count\n     where s.name = p_sequence\n' +
            '    returning s.last_token - p_count into v_base;\n    if found then\n      return v_base;\n    end if;',
          in:
            '    perform from fencepost.token_sequence s where s.name = p_sequence for update;\n    if found then\n' +
            '      return (select max(l.token) from fencepost.lease l where l.sequence = p_sequence);\n    end if;',
        },
      ],
      [acquireBatch]: [
        {
          out:
            '  update token_sequence s set last_token = token_base(s.last_token, s.follows_clock) + v_count\n   where s.name = p_sequence\n' +
            '  returning s.last_token - v_count + 1 into token;\n  if not found then\n' +
            '    token := draw_tokens(p_sequence, v_count) + 1;\n  end if;',
          in: '  token := draw_tokens(p_sequence, v_count) + 1;',
        },
      ],
      [release]: [
        {
          out:
            '        update token_sequence s set last_token = token_base(s.last_token, s.follows_clock) + 1\n         where s.name = v_sequence\n' +
            '        returning s.last_token),',
          in: '        select draw_tokens(v_sequence, 1) + 1 as last_token),',
        },
      ],
      [beat]: [
        {
          out: '  perform be_certain();',
          in: `  delete from lease l
   where l.name in (
     select idle.name from lease idle left join holder h on h.id = idle.holder_id
      where idle.holder_id is null or h.ended_at is not null
        for update of idle skip locked);
  perform be_certain();`,
        },
      ],
    },
  },
  {
    name: 'grant-not-durable',
    without:
      'the wait of a grant for the disk where synchronous_commit is off: a crash takes back what was answered.',
    caughtAs: ['won-grant-missing', 'token-given-twice', 'token-told-twice'],
    mode: 'safety',
    provocation: { clients: 4, leases: 2, ttlMs: 500, faults: ['async-commit'] },
    functions: {
      'fencepost.be_certain()': [
        {
          out:
            "  if current_setting('synchronous_commit') in ('off', 'local') then\n" +
            "    perform set_config('synchronous_commit', 'on', true);\n  end if;\n",
          in: '',
        },
      ],
    },
  },
]
