import type { AddressInfo } from 'node:net'
import { type ServerType, serve } from '@hono/node-server'
import express, { type ErrorRequestHandler } from 'express'
import { Hono } from 'hono'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { HttpFence } from '../../src/http/http-fence.ts'
import { RequestRefusedError } from '../../src/http/request-refused.ts'
import { useDatabase } from '../support/database.ts'
import { waitsOrAnswers } from '../support/fence-only.ts'

// The recipes of docs/http.md, in the real frameworks.

const database = useDatabase()

/** A store that cannot compare tokens. A write of "slow" says when it has begun, and waits. */
class Store {
  readonly written: string[] = []
  readonly begun: PromiseWithResolvers<void> = Promise.withResolvers()
  readonly goOn: PromiseWithResolvers<void> = Promise.withResolvers()
  async put(text: string): Promise<void> {
    if (text === 'slow') {
      this.begun.resolve()
      await this.goOn.promise
    }
    this.written.push(text)
  }
}

let store: Store
let server: ServerType | undefined

beforeEach(() => {
  store = new Store()
})

afterEach(() => new Promise<void>((resolve) => void server!.close(() => resolve())))

const frameworks: Record<string, (fence: HttpFence) => Promise<ServerType>> = {
  async hono(fence) {
    const app = new Hono()
    app.put('/:name', async (context) => {
      await using _ = await fence.enter(context.req.raw.headers, `report/${context.req.param('name')}`)
      await store.put(await context.req.text())
      return context.body(null, 204)
    })
    return new Promise((resolve) => {
      const hono = serve({ fetch: app.fetch, port: 0 }, () => resolve(hono))
    })
  },
  async 'fetch style'(fence) {
    const wrapped = fence.wrap(
      (request) => `report${new URL(request.url).pathname}`,
      async (request) => {
        await store.put(await request.text())
        return new Response(null, { status: 204 })
      },
    )
    return new Promise((resolve) => {
      const fetchStyle = serve({ fetch: wrapped, port: 0 }, () => resolve(fetchStyle))
    })
  },
  async express(fence) {
    const app = express()
    app.put('/:name', express.text(), async (request, response) => {
      await using _ = await fence.enter(request.headers, `report/${request.params['name']}`)
      await store.put(String(request.body))
      response.sendStatus(204)
    })
    const refuse: ErrorRequestHandler = (error, _request, response, next) => {
      if (error instanceof RequestRefusedError) error.writeTo(response)
      else next(error)
    }
    app.use(refuse)
    return new Promise((resolve) => {
      const listening = app.listen(0, () => resolve(listening))
    })
  },
}

describe.each(Object.entries(frameworks))('%s', (name, start) => {
  test('refuses what is not in order, and keeps a delayed request before the newer one', async () => {
    server = await start(new HttpFence(database.newPool({ max: 10 })))
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/${encodeURIComponent(name)}`
    const put = (body: string, token?: number | string): Promise<Response> =>
      fetch(url, {
        method: 'PUT',
        body,
        headers: {
          'content-type': 'text/plain',
          ...(token === undefined ? {} : { 'Fencing-Token': String(token) }),
        },
      })
    expect((await put('first', 33)).status).toBe(204)
    expect((await put('none')).status).toBe(428)
    expect((await put('odd', 'x')).status).toBe(400)
    const late = put('slow', 33)
    await store.begun.promise
    const next = put('next', 34)
    await waitsOrAnswers(database, next)
    const refused = await put('stale', 33)
    expect(refused.status).toBe(412)
    expect(refused.headers.get('content-type')).toBe('application/problem+json')
    expect(await refused.json()).toMatchObject({ code: 'STALE_TOKEN', token: '33', currentToken: '34' })
    store.goOn.resolve()
    expect((await late).status).toBe(204)
    expect((await next).status).toBe(204)
    expect(store.written).toEqual(['first', 'slow', 'next'])
  })
})
