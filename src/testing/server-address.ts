import { type Socket, connect, isIP } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { Client, type ClientConfig } from 'pg'

/** Where the real server is, and how `pg` would talk to it. */
export interface ServerAddress {
  readonly host: string
  readonly port: number
  readonly ssl: boolean | NonNullable<Exclude<ClientConfig['ssl'], boolean>>
  /** TLS from the first byte on, without asking for it. */
  readonly isDirect: boolean
}

/** What a client has to say to be let in. */
export interface Credentials {
  readonly user: string
  readonly password: string | undefined
  readonly database: string
}

/** What `pg` makes of its settings and of the environment. Not all of it is in its types. */
interface Resolved {
  readonly host: string
  readonly port: number
  readonly ssl: ServerAddress['ssl'] | undefined
  readonly user: string
  readonly database: string
  readonly password: string | null | undefined | (() => string | Promise<string>)
  readonly connectionParameters: { readonly sslnegotiation?: string }
}

/** What `pg` would do with these settings. */
export async function readConfig(
  config: ClientConfig,
): Promise<{ readonly address: ServerAddress; readonly credentials: Credentials }> {
  const client = new Client(config) as unknown as Resolved
  const { host, port, user, database, ssl = false, password } = client
  const isDirect = client.connectionParameters.sslnegotiation === 'direct'
  const secret = typeof password === 'function' ? await password() : password
  return {
    address: { host, port, ssl, isDirect },
    credentials: { user, password: secret ?? undefined, database },
  }
}

/** What is said of the way to the server is for the proxy. */
const ofServer =
  /^(host|hostaddr|port|ssl.*|channel_binding|gssencmode|uselibpqcompat|user|password|dbname|database)$/

/** The URL of the same database by way of a port of this machine. What else a URL says of the session stays. */
export function urlThrough(
  port: number,
  { user, password = '', database }: Credentials,
  original: string | undefined,
): string {
  const url = new URL(`postgres://127.0.0.1:${port}/${encodeURIComponent(database)}`)
  url.username = encodeURIComponent(user)
  url.password = encodeURIComponent(password)
  // One of a Unix socket is no URL to anybody but pg.
  const parameters = new URLSearchParams(original?.split('?', 2)[1])
  for (const [name, value] of parameters) if (!ofServer.test(name)) url.searchParams.append(name, value)
  url.searchParams.set('sslmode', 'disable')
  // libpq takes a plus sign as one.
  return url.href.replaceAll('+', '%20')
}

const sslRequest = Buffer.from([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f])

/** Opens a connection to the server, over TLS where the settings say so, and checks its certificate as they say. */
export async function connectTo({ host, port, ssl, isDirect }: ServerAddress): Promise<Socket> {
  const socket = host.startsWith('/')
    ? connect({ path: `${host}/.s.PGSQL.${port}` })
    : connect({ host, port, noDelay: true })
  try {
    await once(socket, 'connect')
    if (ssl === false) return socket
    if (!isDirect) {
      socket.write(sslRequest)
      const answer = String(await once(socket, 'data'))
      if (answer !== 'S') throw new Error('the server does not support TLS')
    }
    const options = typeof ssl === 'object' ? ssl : {}
    // pg keeps the key from being listed, and so from being copied.
    const key = options.key === undefined ? {} : { key: options.key }
    const secure = connectTls({
      socket,
      host,
      ...(isIP(host) === 0 ? { servername: host } : {}),
      ...(isDirect ? { ALPNProtocols: ['postgresql'] } : {}),
      ...options,
      ...key,
    })
    await once(secure, 'secureConnect')
    return secure
  } catch (error) {
    socket.destroy()
    throw error
  }
}

/** The first event of that name, or the error that comes before it. */
function once(socket: Socket, name: string): Promise<unknown> {
  return new Promise((settle, reject) => {
    const heard = (value: unknown): void => {
      socket.off('error', failed)
      socket.off('close', closed)
      settle(value)
    }
    const failed = (error: Error): void => {
      socket.off(name, heard)
      socket.off('close', closed)
      reject(error)
    }
    const closed = (): void => failed(new Error('the server closed the connection'))
    socket.once(name, heard)
    socket.once('error', failed)
    socket.once('close', closed)
  })
}
