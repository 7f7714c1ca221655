import type { Control, Piece } from './control.ts'

const fence = 'fencepost.fence(text,bigint,uuid,bigint,bigint)'
const holdTerm = 'fencepost.hold_term(text,bigint,uuid,boolean)'
const guard = 'fencepost.guard()'

const fenceLock: Piece = { out: '     for share of l;', in: '     ;' }
/** The walls that compare on their own, and would make up for a fence that does not lock. */
const wallsWithoutLocks = {
  [holdTerm]: [{ out: '     for share of l;', in: '     ;' }],
  [guard]: [{ out: '     for share;', in: '     ;' }],
}
/** What the first idea for a fence is: `… where exists (select … token = mine)`, in each statement that writes. */
const predicate = `
  create function torture.compare_token() returns trigger language plpgsql as $$
  begin
    if not exists (select from fencepost.lease l
                    where l.name = new.lease and l.token = (to_jsonb(new) ->> TG_ARGV[0])::bigint and l.holder_id is not null) then
      raise exception 'the token of lease "%" is stale', new.lease
        using errcode = 'FP001', detail = json_build_object('by', 'lease', 'lease', new.lease)::text;
    end if;
    return new;
  end $$;
  create trigger compare_token before insert on torture.write for each row execute function torture.compare_token('token');
  create trigger compare_token before update on torture.row for each row execute function torture.compare_token('stamp')`
const isAlive = 'and h.ended_at is null and h.expires_at > clock_timestamp()'

/** Long transactions of holders that are silent meanwhile. */
const crossing = { clients: 4, leases: 3, ttlMs: 300, faults: ['dawdle', 'block', 'drop'] }

/** Writes that a newer term does not keep out, or that keep a newer term out. */
export const fenceControls: readonly Control[] = [
  {
    name: 'token-predicate',
    without:
      'the fence: a write compares its token in the WHERE clause of its own statement, and no lock keeps the token the latest.',
    caughtAs: ['stale-write'],
    mode: 'safety',
    provocation: crossing,
    sql: predicate,
    functions: {
      ...wallsWithoutLocks,
      [fence]: [
        fenceLock,
        {
          out: 'where l.name = p_name and l.token = p_token and l.holder_id = p_holder',
          in: 'where l.name = p_name',
        },
        {
          out: `where h.id = p_holder ${isAlive} and v_deadline > clock_timestamp()`,
          in: 'where h.id = p_holder',
        },
      ],
    },
  },
  {
    name: 'fence-without-lock',
    without:
      "the fence's row lock: it reads the lease without FOR SHARE, so a take-over need not wait for it.",
    caughtAs: ['stale-write'],
    mode: 'safety',
    provocation: crossing,
    functions: { ...wallsWithoutLocks, [fence]: [fenceLock] },
  },
  {
    name: 'token-only-fence',
    without:
      "the fence's look at the holder: it compares the token alone, so that also who has expired begins one transaction after another.",
    caughtAs: ['not-granted'],
    mode: 'liveness',
    provocation: { clients: 4, leases: 3, ttlMs: 500, seconds: 40, faults: [] },
    functions: {
      [fence]: [
        {
          out: `where h.id = p_holder ${isAlive} and v_deadline > clock_timestamp()`,
          in: 'where h.id = p_holder and v_deadline is not null',
        },
      ],
      [holdTerm]: [
        {
          out: `where h.id = p_holder ${isAlive};\n  if not found or hold_term.deadline <= clock_timestamp() then`,
          in: 'where h.id = p_holder;\n  if not found then',
        },
      ],
    },
  },
]
