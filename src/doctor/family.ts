import type { Examination } from './examination.ts'

interface Member {
  readonly table: string
  readonly isPartition: boolean
  readonly parents: Set<string>
  readonly children: Set<string>
}

/** Tables, and what inherits from what: protected ones with everything above and below them. */
export class Family {
  readonly #members = new Map<string, Member>()
  readonly #trees = new Map<string, ReadonlySet<string>>()

  add(oid: string, table: string, isPartition: boolean): void {
    this.#members.set(oid, { table, isPartition, parents: new Set(), children: new Set() })
  }

  join(child: string, parent: string): void {
    this.#members.get(child)?.parents.add(parent)
    this.#members.get(parent)?.children.add(child)
  }

  of(oid: string): Member {
    return this.#members.get(oid)!
  }

  /** The table and what inherits from it. */
  tree(oid: string): ReadonlySet<string> {
    let tree = this.#trees.get(oid)
    if (tree === undefined) {
      tree = this.#reach(oid, ({ children }) => children)
      this.#trees.set(oid, tree)
    }
    return tree
  }

  outerParents(root: string): { oid: string; parent: string }[] {
    const tree = this.tree(root)
    return [...tree].flatMap((oid) =>
      [...this.of(oid).parents].filter((parent) => !tree.has(parent)).map((parent) => ({ oid, parent })),
    )
  }

  /** What is above all that can write the table, itself included; undefined when no single table is. */
  top(oid: string): string | undefined {
    const tops = [...this.#reach(oid, ({ parents }) => parents)].filter(
      (one) => this.of(one).parents.size === 0,
    )
    return tops.find((top) => this.outerParents(top).length === 0)
  }

  #reach(from: string, next: (member: Member) => ReadonlySet<string>): ReadonlySet<string> {
    const reached = new Set([from])
    // A set is walked through to what is added on the way.
    for (const oid of reached) for (const one of next(this.of(oid))) reached.add(one)
    return reached
  }
}

export async function readFamily(exam: Examination, oids: readonly string[]): Promise<Family | undefined> {
  const rows = await exam.look(
    { what: 'the parents of protected tables', needs: 'the right to read the catalogs' },
    `with recursive family as (
       select unnest($1::oid[]) as oid
       union
       select k.oid
         from family f
        cross join lateral (
          select i.inhparent from pg_inherits i where i.inhrelid = f.oid
          union all
          select i.inhrelid from pg_inherits i where i.inhparent = f.oid) k (oid))
     select f.oid::text as oid, format('%I.%I', n.nspname, c.relname) as "table", c.relispartition::text as is_partition,
            (select array_to_json(array_agg(i.inhparent::text)) from pg_inherits i where i.inhrelid = f.oid)::text as parents
       from family f
       join pg_class c on c.oid = f.oid
       join pg_namespace n on n.oid = c.relnamespace
      order by 2`,
    [oids],
  )
  if (rows === undefined) return undefined
  const family = new Family()
  for (const row of rows) family.add(row['oid']!, row['table']!, row['is_partition'] === 'true')
  for (const row of rows) {
    for (const parent of JSON.parse(row['parents'] ?? '[]') as string[]) family.join(row['oid']!, parent)
  }
  return family
}
