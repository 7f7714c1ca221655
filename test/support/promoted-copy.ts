import { execFile } from 'node:child_process'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Client, type QueryResultRow } from 'pg'
import { EmbeddedServer } from '../../src/database/embedded-server.ts'

const settings = { fsync: 'off' }

/** A primary, and a copy of it that is promoted later, without what the primary has done since: an asynchronous standby that lags. */
export class PromotedCopy implements AsyncDisposable {
  readonly #directory: string
  #primary: EmbeddedServer
  #copy: EmbeddedServer | undefined

  private constructor(directory: string, primary: EmbeddedServer) {
    this.#directory = directory
    this.#primary = primary
  }

  static async start(): Promise<PromotedCopy> {
    const directory = await mkdtemp(join(tmpdir(), 'fencepost-promoted-'))
    // The server may run as another user than this.
    await chmod(directory, 0o755)
    return new PromotedCopy(
      directory,
      await EmbeddedServer.start({ directory: join(directory, 'primary'), settings }),
    )
  }

  get url(): string {
    return this.#primary.url
  }

  /** The copy is taken now. The primary is restarted for it, on the same port. */
  async copy(): Promise<void> {
    const { port } = this.#primary
    await this.#primary.stop()
    // With the owner of the files, who is the one that may run the server.
    await promisify(execFile)('cp', ['-a', join(this.#directory, 'primary'), join(this.#directory, 'copy')])
    this.#primary = await EmbeddedServer.start({
      directory: join(this.#directory, 'primary'),
      port,
      settings,
    })
  }

  /** Promotes the copy, and returns its URL. The primary lives on. */
  async promote(): Promise<string> {
    const directory = join(this.#directory, 'copy')
    await writeFile(join(directory, 'data', 'standby.signal'), '')
    this.#copy = await EmbeddedServer.start({ directory, settings })
    await queryAt(this.#copy.url, 'select pg_promote()')
    return this.#copy.url
  }

  query<Row extends QueryResultRow>(text: string): Promise<Row[]> {
    return queryAt(this.url, text)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#copy?.stop('immediate')
    await this.#primary.stop('immediate')
    await rm(this.#directory, { recursive: true, force: true })
  }
}

async function queryAt<Row extends QueryResultRow>(connectionString: string, text: string): Promise<Row[]> {
  const client = new Client({ connectionString })
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query<Row>(text)).rows
  } finally {
    await client.end()
  }
}
