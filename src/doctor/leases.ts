import { escapeLiteral } from 'pg'
import { type Examination, advice, sql } from './examination.ts'

/** How many rows of one kind are named; the fixes are for all of them. */
const named = 5

/** Rows that no function of the protocol leaves behind: somebody has edited them, restored part of them, or set the clock. */
export async function checkLeases(exam: Examination): Promise<void> {
  if (!exam.facts.relations.has('lease')) return
  await checkSequences(exam)
  await checkClockSequences(exam)
  await checkTokens(exam)
  await checkHolders(exam)
  await checkTimes(exam)
}

async function checkSequences(exam: Examination): Promise<void> {
  const rows = await exam.look(
    {
      what: 'leases and their sequences',
      needs: 'SELECT on fencepost.lease and fencepost.token_sequence',
    },
    `select x.name, s.last_token::text as last, x.highest::text as highest, x.lease
       from (select l.sequence as name, max(l.token) as highest, (array_agg(l.name order by l.token desc))[1] as lease
               from fencepost.lease l group by l.sequence
             union all
             select 'default', 0, null where not exists (select from fencepost.lease l where l.sequence = 'default')
             union all
             select s.name, 0, null from fencepost.token_sequence s
              where s.name <> 'default' and not exists (select from fencepost.lease l where l.sequence = s.name)) x
       left join fencepost.token_sequence s on s.name = x.name
      order by 1`,
  )
  for (const row of rows ?? []) {
    const name = row['name']!
    const highest = BigInt(row['highest']!)
    const fix = sql(`select fencepost.raise_token_floor(${escapeLiteral(name)}, ${highest});`)
    if (row['last'] === null || row['last'] === undefined) {
      exam.found(
        'sequence-missing',
        'error',
        `sequence ${name}`,
        `The token sequence "${name}" has lost its row: the next grant would begin at 1 again.`,
        fix,
      )
      continue
    }
    const last = BigInt(row['last'])
    if (highest > last) {
      exam.found(
        'token-above-sequence',
        'error',
        `lease ${row['lease']!}`,
        `The lease "${row['lease']!}" has token ${highest}, and its sequence "${name}" has given out tokens up to ${last} only: older terms could be taken for newer ones.`,
        fix,
      )
    }
    if (last > 9_000_000_000_000_000_000n) {
      exam.found(
        'sequence-exhausted',
        'warning',
        `sequence ${name}`,
        `The token sequence "${name}" stands at ${last}, near its end at 9223372036854775807.`,
        advice('Name a fresh sequence for new leases (the option "sequence" of acquire).'),
      )
    }
  }
}

/** A clock sequence that is ahead of the clock does no more than a counter. A batch may take it ahead by a few milliseconds. */
async function checkClockSequences(exam: Examination): Promise<void> {
  if (!exam.facts.relations.has('sequences')) return
  const rows = await exam.look(
    { what: 'the sequences that follow the clock', needs: 'SELECT on fencepost.sequences' },
    `select s.name, s.last_token::text as last, (clock_timestamp() + s.ahead)::timestamptz(0)::text as until
       from fencepost.sequences s where s.ahead > interval '1 second' order by 1`,
  )
  for (const row of rows ?? []) {
    exam.found(
      'sequence-ahead',
      'warning',
      `sequence ${row['name']!}`,
      `The clock sequence "${row['name']!}" stands at ${row['last']!}, which the database's clock reaches at ${row['until']!}: the clock was set back, or the tokens were raised past it. Until then it counts, and a failover or restore that loses grants can have it hand out tokens twice.`,
      advice(
        'Wait until then. If that is too long, name a fresh sequence of kind clock for new leases (the option "sequence" of acquire).',
      ),
    )
  }
}

async function checkTokens(exam: Examination): Promise<void> {
  const subject = { what: 'the tokens of leases', needs: 'SELECT on fencepost.lease' }
  const twins = await exam.look(
    subject,
    `select l.sequence, l.token::text as token, string_agg(format('"%s"', l.name), ' and ' order by l.name) as leases,
            max(l.name) as last
       from fencepost.lease l group by l.sequence, l.token having count(*) > 1 order by 1, 2 limit ${named}`,
  )
  for (const row of twins ?? []) {
    exam.found(
      'token-duplicate',
      'error',
      `lease ${row['last']!}`,
      `The leases ${row['leases']!} both have token ${row['token']!} of sequence "${row['sequence']!}": somebody has edited them, and a row tells no longer which of the two wrote it.`,
      // Who holds it loses it, as by a take-over: the next grant draws a token of its own, above every earlier one.
      sql(`delete from fencepost.lease where name = ${escapeLiteral(row['last']!)};`),
    )
  }
  const odd = await exam.look(
    subject,
    `select l.name, l.token::text as token, l.available_at::text as available_at, (l.token < 1)::text as is_token
       from fencepost.lease l
      where l.token < 1 or l.available_at > clock_timestamp() + interval '366 days'
      order by 1 limit ${named}`,
  )
  for (const row of odd ?? []) {
    const isToken = row['is_token'] === 'true'
    exam.found(
      'lease-edited',
      isToken ? 'error' : 'warning',
      `lease ${row['name']!}`,
      isToken
        ? `The lease "${row['name']!}" has token ${row['token']!}, which no grant gives: somebody has edited it.`
        : `The lease "${row['name']!}" cannot be granted before ${row['available_at']!}: somebody has edited it.`,
      isToken
        ? sql(`delete from fencepost.lease where name = ${escapeLiteral(row['name']!)};`)
        : sql(
            `update fencepost.lease set available_at = '-infinity' where name = ${escapeLiteral(row['name']!)};`,
          ),
    )
  }
}

async function checkHolders(exam: Examination): Promise<void> {
  const orphans = await exam.look(
    { what: 'the holders of leases', needs: 'SELECT on fencepost.lease and fencepost.holder' },
    // A holder's row is kept for a day after its end, and a term of it may stand for ever. So only a grant of today tells.
    `select l.name, l.granted_at::text as granted_at
       from fencepost.lease l
      where l.holder_id is not null and l.granted_at between clock_timestamp() - interval '1 day' and clock_timestamp()
        and not exists (select from fencepost.holder h where h.id = l.holder_id)
      order by 1 limit ${named}`,
  )
  for (const row of orphans ?? []) {
    exam.found(
      'lease-holder-unknown',
      'warning',
      `lease ${row['name']!}`,
      `The lease "${row['name']!}" was granted at ${row['granted_at']!} to a holder whose row is gone: somebody has edited fencepost.holder or this lease, and whoever held it has lost it.`,
      sql(
        `update fencepost.lease l set holder_id = null where l.name = ${escapeLiteral(row['name']!)} and not exists (select from fencepost.holder h where h.id = l.holder_id);`,
      ),
    )
  }
  const lasting = await exam.look(
    { what: 'the holders', needs: 'SELECT on fencepost.holder' },
    `select h.label, h.ttl::text as ttl, h.expires_at::text as expires_at
       from fencepost.holder h
      where h.ended_at is null and h.expires_at > clock_timestamp() + h.ttl + interval '1 second'
      order by 1 limit ${named}`,
  )
  for (const row of lasting ?? []) {
    exam.found(
      'holder-expiry-edited',
      'error',
      `holder ${row['label']!}`,
      `The holder "${row['label']!}" has a TTL of ${row['ttl']!}, but expires at ${row['expires_at']!} only: somebody has edited it, or the clock went back; if it dies, its leases stay held until then.`,
      // No holder trusts its leases for longer than a TTL after it last asked, so this takes nothing from it.
      sql(
        'update fencepost.holder set expires_at = clock_timestamp() + ttl where ended_at is null and expires_at > clock_timestamp() + ttl;',
      ),
    )
  }
}

async function checkTimes(exam: Examination): Promise<void> {
  const rows = await exam.look(
    { what: 'the times of leases and holders', needs: 'SELECT on fencepost.lease and fencepost.holder' },
    `select 'holder ' || h.label as what, 'joined' as did, h.joined_at::text as at
       from fencepost.holder h where h.joined_at > clock_timestamp() + interval '1 second'
     union all
     select 'lease ' || l.name, 'was granted', l.granted_at::text
       from fencepost.lease l where l.granted_at > clock_timestamp() + interval '1 second'
      order by 1 limit ${named}`,
  )
  for (const row of rows ?? []) {
    exam.found(
      'time-in-future',
      'warning',
      row['what']!,
      `The ${row['what']!} ${row['did']!} at ${row['at']!}, which is yet to come: the clock of the database has gone back since, and what it measured before ends too late.`,
      advice(
        'Let the server slew its clock (chrony or ntpd without steps). Terms from before end when the clock has caught up, or when their holder gives them back.',
      ),
    )
  }
}
