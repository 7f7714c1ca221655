#!/usr/bin/env node
import { Invocation } from './commands/invocation.ts'
import { exitCode, exitCodeOf } from './exit-code.ts'
import { hidePasswords, withoutPasswords } from './hidden-passwords.ts'
import { exitAtOnce } from './leave.ts'
import { dropNoticesOfPg } from './notices.ts'

hidePasswords(process)
dropNoticesOfPg(process)

if (Number.parseInt(process.versions.node, 10) < 22) {
  process.stderr.write(`fencepost: needs Node 22.12 or newer; this is ${process.version}\n`)
  process.exit(exitCode.failed)
}

// Whoever reads the output may go away (`| head`). That must not end a wrapper whose command still runs.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

const invocation = new Invocation(process.argv)
// Not before the passwords are hidden: loading the parser takes as long as all of the above.
const { CommanderError } = await import('commander')
const { buildProgram } = await import('./commands/program.ts')
try {
  await (await buildProgram(invocation)).parseAsync(invocation.own)
} catch (error) {
  if (error instanceof CommanderError) {
    invocation.code = error.exitCode === 0 ? exitCode.done : exitCode.usage
  } else {
    // The message may repeat an argument that is a URL by mistake.
    process.stderr.write(
      `fencepost: ${withoutPasswords(error instanceof Error ? error.message : String(error))}\n`,
    )
    invocation.code = exitCodeOf(error)
  }
}
// A database that does not answer may still keep sockets and timers open. Nothing that matters waits for them.
if (invocation.isHeldUp) exitAtOnce(invocation.code)
process.stdout.write('', () => process.exit(invocation.code))
