import type { Control } from './control.ts'

/** Clients that believe what they should not. */
export const clientControls: readonly Control[] = [
  {
    name: 'trust-from-reply',
    without:
      'the anchor of trust: the TTL is counted from when the answer came, although the database has counted from earlier.',
    caughtAs: ['trust-outlived-term'],
    mode: 'safety',
    provocation: { clients: 2, leases: 2, ttlMs: 500, faults: ['delay', 'black-hole'] },
    modules: {
      'lease/holder.ts': [
        { out: '    this.#confirm(sentAt)\n  }', in: '    this.#confirm(this.#now())\n  }' },
        {
          out: '        this.#confirm(sentAt)\n        for (const listener',
          in: '        this.#confirm(this.#now())\n        for (const listener',
        },
      ],
      'lease/seat.ts': [
        {
          out: 'deadlineMs: sentAtMs + maxHoldMs - marginMs',
          in: 'deadlineMs: this.#options.clock.monotonicMs() + maxHoldMs - marginMs',
        },
      ],
    },
  },
  {
    name: 'listen-only-waiter',
    without:
      'the question of a waiter whose wake-up has not come: it sleeps until it is told, and behind a pooler nobody tells.',
    caughtAs: ['not-told', 'not-granted'],
    mode: 'liveness',
    provocation: { clients: 4, leases: 2, ttlMs: 500, seconds: 40, faults: [], pooler: true },
    modules: {
      'lease/one-lease.ts': [
        {
          out: 'await (this.#standing?.sleep(ms, this.#patience) ?? this.#patience.sleep(ms))',
          in: 'await (this.#standing?.sleep(Number.MAX_SAFE_INTEGER, this.#patience) ?? this.#patience.sleep(ms))',
        },
      ],
    },
  },
]
