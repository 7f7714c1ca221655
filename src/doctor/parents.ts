import { escapeLiteral } from 'pg'
import { type Examination, type Fix, advice, sql } from './examination.ts'
import { type Family, readFamily } from './family.ts'
import type { Recorded } from './records.ts'

/**
 * Finds tables of protected trees that have a parent outside, through which their rows are written as well; the schema has
 * `outer_parents()` for it, which takes a right to call. Returns the protections that are no part of another one: what is
 * wrong below those is theirs.
 */
export async function checkParents(
  exam: Examination,
  recorded: readonly Recorded[],
): Promise<readonly Recorded[]> {
  const standing = recorded.filter((one) => one.table !== undefined)
  if (standing.length === 0) return recorded
  const family = await readFamily(
    exam,
    standing.map((one) => one.oid),
  )
  if (family === undefined) return recorded
  const wholes = standing.filter(
    (one) => !standing.some((other) => other.oid !== one.oid && family.tree(other.oid).has(one.oid)),
  )
  const parts = standing.filter((one) => !wholes.includes(one))
  // A table of two protected trees is one finding, not one for each of them.
  const shared = new Set<string>()
  for (const whole of wholes) {
    const outside = family.outerParents(whole.oid)
    for (const { oid, parent } of outside) {
      if (oid === whole.oid) {
        reportWhole(exam, { family, wholes, parts, whole, parent })
        continue
      }
      const other = wholes.find((one) => family.tree(one.oid).has(parent))
      if (other !== undefined && shared.has(oid)) continue
      if (other !== undefined) shared.add(oid)
      reportChild(exam, family, { oid, parent }, whole, other)
    }
    if (!outside.some(({ oid }) => oid === whole.oid)) reportParts(exam, family, whole, parts)
  }
  return recorded.filter((one) => !parts.includes(one))
}

interface Adopted {
  readonly family: Family
  readonly wholes: readonly Recorded[]
  readonly parts: readonly Recorded[]
  readonly whole: Recorded
  readonly parent: string
}

/** The protected table itself has become part of another one. */
function reportWhole(exam: Examination, { family, wholes, parts, whole, parent }: Adopted): void {
  const top = family.top(parent)
  const below = (one: Recorded): boolean => top !== undefined && family.tree(top).has(one.oid)
  const wholesBelow = wholes.filter(below)
  const isOne = wholesBelow.every(
    (one) =>
      one.guard === whole.guard && one.fenceColumn === whole.fenceColumn && one.isStamped === whole.isStamped,
  )
  const above = family.of(top !== undefined && isOne ? top : parent).table
  exam.found(
    'parent-unprotected',
    'error',
    whole.table!,
    `${whole.table!} is protected, but has become part of ${above}, through which its rows are written without a check.`,
    top !== undefined && isOne
      ? protectWhole(above, whole, [...wholesBelow, ...parts.filter(below)])
      : advice(
          `Take it out: ${leave(family, whole.oid, parent)} Or protect ${family.of(top ?? parent).table} instead, which takes one guard for all of it.`,
        ),
  )
}

/** A table below the protected one has a second parent, so that no protection covers every way to it. */
function reportChild(
  exam: Examination,
  family: Family,
  { oid, parent }: { readonly oid: string; readonly parent: string },
  whole: Recorded,
  other: Recorded | undefined,
): void {
  const { table } = family.of(oid)
  const outer = family.of(parent).table
  exam.found(
    'parent-unprotected',
    other === undefined ? 'error' : 'warning',
    table,
    other === undefined
      ? `${table} is part of ${whole.table!}, which is protected, but also of ${outer}, through which its rows are written without a check.`
      : `${table} is part of ${whole.table!} and of ${other.table!}, which are protected each by itself, so neither can be protected again.`,
    advice(`Let it be part of one of them only: ${leave(family, oid, parent)}`),
  )
}

function reportParts(exam: Examination, family: Family, whole: Recorded, parts: readonly Recorded[]): void {
  const own = parts.filter((one) => family.tree(whole.oid).has(one.oid))
  for (const one of own) {
    exam.found(
      'parent-unprotected',
      'warning',
      one.table!,
      `${one.table!} is recorded as protected by itself, but is part of ${whole.table!}, which is protected as a whole: it cannot be protected again.`,
      protectWhole(whole.table!, whole, [whole, ...own]),
    )
  }
}

function leave(family: Family, child: string, parent: string): string {
  const { table, isPartition } = family.of(child)
  const from = family.of(parent).table
  return isPartition
    ? `alter table ${from} detach partition ${table};`
    : `alter table ${table} no inherit ${from};`
}

/** Replaces the protections of parts by that of the whole, with no moment in which one of them is without. */
function protectWhole(table: string, as: Recorded, former: readonly Recorded[]): Fix {
  const words = [as.guard, as.fenceColumn].map(escapeLiteral)
  return sql(
    [
      'begin;',
      "set local lock_timeout = '1s';",
      // The whole before its parts, because its row triggers are cloned to them.
      ...former.map((one) => `select fencepost.unprotect(${escapeLiteral(one.table!)}::regclass);`),
      `select fencepost.protect(${escapeLiteral(table)}::regclass, ${words[0]!}, ${words[1]!}, ${as.isStamped});`,
      'commit;',
    ].join('\n'),
  )
}
