/** The parts of Kubernetes' API that the examples use: what their fields are, and what becomes of them. */

interface EnvironmentVariable {
  readonly name: string
  readonly value?: string
  readonly valueFrom?: {
    readonly secretKeyRef?: { readonly name: string; readonly key: string }
    readonly fieldRef?: { readonly fieldPath: string }
  }
}

export interface Container {
  readonly name: string
  readonly image: string
  readonly command: readonly string[]
  readonly args: readonly string[]
  readonly env: readonly EnvironmentVariable[]
  readonly securityContext?: { readonly readOnlyRootFilesystem?: boolean }
}

interface Pod {
  readonly restartPolicy?: string
  readonly terminationGracePeriodSeconds: number
  readonly securityContext: { readonly runAsUser: number }
  readonly initContainers?: readonly Container[]
  readonly containers: readonly Container[]
}

export interface Job {
  readonly spec: {
    readonly activeDeadlineSeconds: number
    readonly podFailurePolicy: {
      readonly rules: readonly {
        readonly action: string
        readonly onExitCodes?: { readonly containerName: string; readonly values: readonly number[] }
      }[]
    }
    readonly template: { readonly spec: Pod }
  }
}

export interface Deployment {
  readonly spec: {
    readonly progressDeadlineSeconds: number
    readonly template: { readonly spec: Pod }
  }
}

/** A type, one of several words, a list of one shape, an object with these fields, or a map of strings. */
type Shape =
  | 'string'
  | 'number'
  | 'boolean'
  | 'map'
  | ReadonlySet<unknown>
  | readonly [Shape]
  | { readonly [field: string]: Shape }

const words = (...all: string[]): ReadonlySet<unknown> => new Set(all)

const metadata: Shape = { name: 'string', generateName: 'string', labels: 'map', annotations: 'map' }

const container: Shape = {
  name: 'string',
  image: 'string',
  command: ['string'],
  args: ['string'],
  env: [
    {
      name: 'string',
      value: 'string',
      valueFrom: {
        secretKeyRef: { name: 'string', key: 'string', optional: 'boolean' },
        fieldRef: { fieldPath: 'string', apiVersion: 'string' },
      },
    },
  ],
  securityContext: {
    allowPrivilegeEscalation: 'boolean',
    readOnlyRootFilesystem: 'boolean',
  },
  resources: { requests: 'map', limits: 'map' },
}

const template: Shape = {
  metadata,
  spec: {
    restartPolicy: words('Always', 'OnFailure', 'Never'),
    terminationGracePeriodSeconds: 'number',
    shareProcessNamespace: 'boolean',
    securityContext: { runAsNonRoot: 'boolean', runAsUser: 'number' },
    initContainers: [container],
    containers: [container],
  },
}

export const shapes = {
  job: {
    apiVersion: words('batch/v1'),
    kind: words('Job'),
    metadata,
    spec: {
      activeDeadlineSeconds: 'number',
      ttlSecondsAfterFinished: 'number',
      backoffLimit: 'number',
      podFailurePolicy: {
        rules: [
          {
            action: words('FailJob', 'FailIndex', 'Ignore', 'Count'),
            onExitCodes: { containerName: 'string', operator: words('In', 'NotIn'), values: ['number'] },
            onPodConditions: [{ type: 'string', status: words('True', 'False', 'Unknown') }],
          },
        ],
      },
      template,
    },
  },
  deployment: {
    apiVersion: words('apps/v1'),
    kind: words('Deployment'),
    metadata,
    spec: {
      replicas: 'number',
      progressDeadlineSeconds: 'number',
      selector: { matchLabels: 'map' },
      template,
    },
  },
} as const satisfies Record<string, Shape>

/** What a manifest has that its shape has not, by the paths of the fields. */
export function faultsOf(value: unknown, shape: Shape, path = ''): string[] {
  const fault = (what: string): string[] => [`${path}: ${what}`]
  if (shape instanceof Set) {
    return shape.has(value) ? [] : fault(`none of ${[...shape].join(', ')}`)
  }
  if (shape === 'map') {
    const isMap = typeof value === 'object' && value !== null && !Array.isArray(value)
    const isOfStrings = isMap && Object.values(value).every((one) => typeof one === 'string')
    return isOfStrings ? [] : fault('no map of strings')
  }
  if (typeof shape === 'string') return typeof value === shape ? [] : fault(`no ${shape}`)
  if (Array.isArray(shape)) {
    const of = shape[0] as Shape
    if (!Array.isArray(value)) return fault('no list')
    return value.flatMap((one, at) => faultsOf(one, of, `${path}[${at}]`))
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return fault('no object')
  const fields = shape as Readonly<Record<string, Shape>>
  return Object.entries(value).flatMap(([name, inner]) => {
    const inside = path === '' ? name : `${path}.${name}`
    const expected = fields[name]
    return expected === undefined ? [`${inside}: no such field`] : faultsOf(inner, expected, inside)
  })
}

export interface PodFacts {
  readonly name: string
  /** By "secret/key". */
  readonly secrets: Readonly<Record<string, string>>
}

/** What the kubelet starts: $(NAME) in an argument is replaced by the container's own variable of that name. */
export function podCommand(
  { command, args, env }: Container,
  { name: podName, secrets }: PodFacts,
): { readonly command: readonly string[]; readonly env: Readonly<Record<string, string>> } {
  const variables = new Map<string, string>()
  for (const { name, value, valueFrom } of env) {
    const secret = valueFrom?.secretKeyRef
    const found =
      value ??
      (secret === undefined ? undefined : secrets[`${secret.name}/${secret.key}`]) ??
      (valueFrom?.fieldRef?.fieldPath === 'metadata.name' ? podName : undefined)
    if (found === undefined) throw new Error(`nothing is known for the variable ${name}`)
    variables.set(name, found)
  }
  const expanded = [...command, ...args].map((word) =>
    word.replaceAll(/\$\((\w+)\)/g, (whole, name: string) => variables.get(name) ?? whole),
  )
  return { command: expanded, env: Object.fromEntries(variables) }
}
