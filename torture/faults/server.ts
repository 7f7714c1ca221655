import { fullDisk } from './disk-data.ts'
import { fullWal } from './disk-wal.ts'
import { poolerRestart } from './pooler.ts'
import { asyncCommit, crashOnce, freeze, restartLoop } from './server-crash.ts'
import { ddl } from './server-ddl.ts'
import type { ServerFault } from './server-fault.ts'
import { notifyOff } from './server-notify.ts'
import { freezeSessions, terminate, terminateAll } from './server-sessions.ts'

export const serverFaults: readonly ServerFault[] = [
  terminate,
  terminateAll,
  freezeSessions,
  crashOnce,
  restartLoop,
  freeze,
  asyncCommit,
  fullDisk,
  fullWal,
  ddl,
  notifyOff,
  poolerRestart,
]
