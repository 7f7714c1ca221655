import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { runInThisContext } from 'node:vm'

/**
 * The model as functions: what `quint compile` says of fencepost.qnt, translated to JavaScript word by word. So what is explored is the
 * model itself and not a second one beside it. That the translation is right is seen by replaying what Quint's own simulator has done:
 * each of its steps must be among those found here (test/spec/replay.test.ts).
 *
 * Integers are numbers and keys of maps are integers. Records and maps are objects, and sets are arrays without a pair that is equal, sorted by
 * what JSON makes of their elements: two values are equal if their JSON is.
 */

/** Quint's command line, to be run with node. */
export const quint = fileURLToPath(import.meta.resolve('@informalsystems/quint/dist/src/cli.js'))

/** A value of Quint's. */
export type Value = boolean | number | string | readonly Value[] | { readonly [key: string]: Value }

/** What was done: the name of the action, and what it was given. */
export type Label = readonly [name: string, ...args: Value[]]

export interface CompiledModel<State> {
  readonly init: () => State
  /** Each state that one step leads to; some of them are equal. */
  readonly step: (state: State, found: (next: State, label: Label) => void) => void
  /** The value of a definition without parameters, in a state. */
  readonly holds: (definition: string, state: State) => boolean
}

/** The nodes of Quint's intermediate representation that the model consists of. */
type Node =
  | { readonly kind: 'bool' | 'int' | 'str'; readonly value: boolean | number | string }
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'app'; readonly opcode: string; readonly args: readonly Node[] }
  | { readonly kind: 'lambda'; readonly params: readonly { readonly name: string }[]; readonly expr: Node }
  | { readonly kind: 'let'; readonly opdef: Definition; readonly expr: Node }

interface Definition {
  readonly kind: 'def' | 'var' | 'const'
  readonly name: string
  readonly qualifier?: 'pureval' | 'puredef' | 'val' | 'def' | 'action' | 'nondet'
  readonly expr: Node
}

interface Instance {
  readonly kind: 'instance'
  readonly protoName: string
  readonly overrides: readonly (readonly [constant: { readonly name: string }, value: Node])[]
}

interface Module {
  readonly name: string
  readonly declarations: readonly (Definition | Instance)[]
}

/** A module that leaves constants open, and those that give them a value, by name. */
export interface Compiled {
  readonly definitions: readonly Definition[]
  readonly instances: ReadonlyMap<string, Instance['overrides']>
}

/** `model` is the module, and `file` has those that give its constants a value; one of them is `main`. */
export async function compile(file: string, model: string, main: string): Promise<Compiled> {
  const directory = await mkdtemp(join(tmpdir(), 'fencepost-spec-'))
  try {
    const out = join(directory, 'model.json')
    // It prints the model too, cut off where a pipe is full, so that is of no use.
    const args = ['compile', '--target=json', `--main=${main}`, `--out=${out}`, file]
    await promisify(execFile)(process.execPath, [quint, ...args], { maxBuffer: 2 ** 30 })
    const { modules } = JSON.parse(await readFile(out, 'utf8')) as { readonly modules: readonly Module[] }
    const instances = modules.flatMap(({ name, declarations }) =>
      declarations.flatMap((one) =>
        one.kind === 'instance' && one.protoName === model ? [[name, one.overrides] as const] : [],
      ),
    )
    const { declarations } = modules.find(({ name }) => name === model)!
    return {
      definitions: declarations.filter((one): one is Definition =>
        ['def', 'var', 'const'].includes(one.kind),
      ),
      instances: new Map(instances),
    }
  } finally {
    await rm(directory, { recursive: true })
  }
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)

/** These, each once. */
export function canonicalSet(elements: readonly Value[]): readonly Value[] {
  if (elements.length < 2) return elements
  const byJson = new Map(elements.map((element) => [JSON.stringify(element), element]))
  return [...byJson].toSorted(([a], [b]) => compare(a, b)).map(([, element]) => element)
}

/** What the translated text calls. */
const runtime = {
  isEqual: (a: Value, b: Value): boolean =>
    a === b || (typeof a === 'object' && JSON.stringify(a) === JSON.stringify(b)),
  isIn: (element: Value, set: readonly Value[]): boolean => set.some((one) => runtime.isEqual(one, element)),
  set: canonicalSet,
  exclude: (a: readonly Value[], b: readonly Value[]): readonly Value[] =>
    a.filter((one) => !runtime.isIn(one, b)),
  map: (keys: readonly Value[], of: (key: Value) => Value): Value =>
    Object.fromEntries(keys.map((key) => [key, of(key)])),
}

/** Quint's own operators, as text. Arguments are evaluated only where Quint does so. */
const operators: Readonly<Record<string, (...args: readonly string[]) => string>> = {
  and: (...args) => `(${args.join(' && ') || 'true'})`,
  or: (...args) => `(${args.join(' || ') || 'false'})`,
  not: (a) => `!${a}`,
  implies: (a, b) => `(!${a} || ${b})`,
  ite: (a, b, c) => `(${a} ? ${b} : ${c})`,
  eq: (a, b) => `isEqual(${a}, ${b})`,
  neq: (a, b) => `!isEqual(${a}, ${b})`,
  igt: (a, b) => `(${a} > ${b})`,
  igte: (a, b) => `(${a} >= ${b})`,
  ilt: (a, b) => `(${a} < ${b})`,
  ilte: (a, b) => `(${a} <= ${b})`,
  iadd: (a, b) => `(${a} + ${b})`,
  isub: (a, b) => `(${a} - ${b})`,
  imul: (a, b) => `(${a} * ${b})`,
  Set: (...args) => `set([${args.join(', ')}])`,
  in: (a, b) => `isIn(${a}, ${b})`,
  contains: (a, b) => `isIn(${b}, ${a})`,
  union: (a, b) => `set([...${a}, ...${b}])`,
  intersect: (a, b) => `exclude(${a}, exclude(${a}, ${b}))`,
  exclude: (a, b) => `exclude(${a}, ${b})`,
  size: (a) => `${a}.length`,
  exists: (a, f) => `${a}.some(${f})`,
  forall: (a, f) => `${a}.every(${f})`,
  filter: (a, f) => `${a}.filter(${f})`,
  mapBy: (a, f) => `map(${a}, ${f})`,
  get: (a, b) => `${a}[${b}]`,
  set: (a, b, c) => `({ ...${a}, [${b}]: ${c} })`,
  field: (a, b) => `${a}[${b}]`,
  with: (a, b, c) => `({ ...${a}, [${b}]: ${c} })`,
  // In the order of their names, whatever order they were written in: `with` and JSON keep it.
  Rec: (...args) => {
    const fields = args.flatMap((arg, i) => (i % 2 === 0 ? [`${arg}: ${args[i + 1]}`] : []))
    return `({ ${fields.toSorted(compare).join(', ')} })`
  },
}

/** Whether what the action does is chosen among others, which have names of their own. */
function isChoice(node: Node): boolean {
  return node.kind === 'let' ? isChoice(node.expr) : node.kind === 'app' && node.opcode === 'actionAny'
}

const identifier = (name: string): string => `_${name.replaceAll(/\W/gu, '_')}`

class Translation {
  /** What is defined at the top, by name. */
  readonly #definitions: ReadonlyMap<string, Definition>

  constructor(definitions: readonly Definition[]) {
    this.#definitions = new Map(definitions.map((definition) => [definition.name, definition]))
  }

  #isAction(name: string): boolean {
    return this.#definitions.get(name)?.qualifier === 'action'
  }

  #expression(node: Node): string {
    switch (node.kind) {
      case 'bool':
      case 'int':
      case 'str':
        return JSON.stringify(node.value)
      case 'name': {
        const definition = this.#definitions.get(node.name)
        if (definition?.kind === 'var') return 'state'
        return `${identifier(node.name)}${definition === undefined || definition.qualifier === 'pureval' ? '' : '()'}`
      }
      case 'lambda':
        return `((${node.params.map(({ name }) => identifier(name)).join(', ')}) => ${this.#expression(node.expr)})`
      case 'let':
        return `(() => { ${this.#constant(node.opdef)} return ${this.#expression(node.expr)} })()`
      case 'app': {
        const args = node.args.map((arg) => this.#expression(arg))
        if (this.#definitions.has(node.opcode)) return `${identifier(node.opcode)}(${args.join(', ')})`
        const operator = operators[node.opcode]
        if (operator === undefined)
          throw new Error(`the model uses "${node.opcode}", which is not translated`)
        return operator(...args)
      }
    }
  }

  #constant({ name, expr }: Definition): string {
    return `const ${identifier(name)} = ${this.#expression(expr)};`
  }

  /** Text that does what the action does, and `then` for each way in which that can be done. */
  #action(node: Node, then: string): string {
    if (node.kind === 'let') {
      const rest = this.#action(node.expr, then)
      if (node.opdef.qualifier !== 'nondet') return `{ ${this.#constant(node.opdef)} ${rest} }`
      const choice = node.opdef.expr as Node & { readonly kind: 'app' }
      return `for (const ${identifier(node.opdef.name)} of ${this.#expression(choice.args[0]!)}) { ${rest} }`
    }
    if (node.kind === 'name' && this.#isAction(node.name)) return this.#call(node.name, [], then)
    if (node.kind === 'app') {
      const { opcode, args } = node
      if (opcode === 'actionAll') return args.reduceRight((rest, arg) => this.#action(arg, rest), then)
      if (opcode === 'actionAny') return args.map((arg) => this.#action(arg, then)).join('\n')
      if (opcode === 'ite') {
        const [left, right] = [this.#action(args[1]!, then), this.#action(args[2]!, then)]
        return `if (${this.#expression(args[0]!)}) { ${left} } else { ${right} }`
      }
      if (opcode === 'assign') return `next = ${this.#expression(args[1]!)}; ${then}`
      if (this.#isAction(opcode)) return this.#call(opcode, args, then)
    }
    return `if (${this.#expression(node)}) { ${then} }`
  }

  #call(name: string, args: readonly Node[], then: string): string {
    return `${identifier(name)}(${[...args.map((arg) => this.#expression(arg)), `() => { ${then} }`].join(', ')});`
  }

  #top(definition: Definition): string {
    const { name, expr, qualifier } = definition
    if (qualifier === 'pureval') return this.#constant(definition)
    const params = expr.kind === 'lambda' ? expr.params.map((param) => identifier(param.name)) : []
    const body = expr.kind === 'lambda' ? expr.expr : expr
    if (qualifier !== 'action') {
      return `function ${identifier(name)}(${params.join(', ')}) { return ${this.#expression(body)} }`
    }
    const label = isChoice(body) ? '' : `label ??= [${[JSON.stringify(name), ...params].join(', ')}];`
    return `function ${identifier(name)}(${[...params, 'then'].join(', ')}) {
      const outer = label; ${label} ${this.#action(body, 'then();')} label = outer }`
  }

  text(): string {
    return [...this.#definitions.values()]
      .filter(({ kind }) => kind === 'def')
      .map((definition) => this.#top(definition))
      .join('\n')
  }
}

/** The model with the constants of an instance. `step`: which of its actions is a step. */
export function translate<State>(
  { definitions, instances }: Compiled,
  instance: string,
  step = 'step',
): CompiledModel<State> {
  const constants = instances.get(instance)!.map(([{ name }, expr]): Definition => {
    return { kind: 'def', qualifier: 'pureval', name, expr }
  })
  const all = [...constants, ...definitions.filter(({ kind }) => kind !== 'const')]
  const values = all
    .filter(({ qualifier }) => qualifier === 'val')
    .map(({ name }) => `${name}: ${identifier(name)}`)
  const text = `(runtime) => {
    "use strict"
    const { isEqual, isIn, set, exclude, map } = runtime
    let state, next, label
    ${new Translation(all).text()}
    const values = { ${values.join(', ')} }
    return {
      init() { ${identifier('init')}(() => {}); return next },
      step(from, found) { state = from; ${identifier(step)}(() => found(next, label)) },
      holds(definition, at) { const from = state; state = at; try { return values[definition]() } finally { state = from } },
    } }`
  return (runInThisContext(text) as (own: typeof runtime) => CompiledModel<State>)(runtime)
}
