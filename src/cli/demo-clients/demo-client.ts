import type { Fence } from '../../fence/fence.ts'

/** What is written: the account's new balance, and the same as a line in its book. Both are stamped with the token. */
export interface DemoWrite {
  readonly balance: number
  readonly token: bigint
}

/** One client, as the demo uses it. Each write is one transaction, and rejects with whatever the client throws. */
export interface DemoClient {
  fenced(fence: Fence, write: DemoWrite): Promise<void>
  unfenced(write: DemoWrite): Promise<void>
  close(): Promise<void>
}
