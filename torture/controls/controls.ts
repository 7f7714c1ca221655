import { fileURLToPath } from 'node:url'
import { clientControls } from './client-controls.ts'
import type { Control } from './control.ts'
import { fenceControls } from './fence-controls.ts'
import { leaseControls } from './lease-controls.ts'

/** Each of them the suite must find. */
export const controls: readonly Control[] = [...fenceControls, ...leaseControls, ...clientControls]

/** The variable that tells `register.ts` which control the process runs under. */
export const controlVariable = 'FENCEPOST_TORTURE_CONTROL'

/** What `node --import` takes in a process that is to run under a control. */
export const registerPath = fileURLToPath(new URL('register.ts', import.meta.url))

/** @throws when there is none of that name. */
export function controlNamed(name: string): Control {
  const control = controls.find((each) => each.name === name)
  if (control === undefined) {
    throw new Error(
      `there is no control "${name}"; there are ${controls.map((each) => each.name).join(', ')}`,
    )
  }
  return control
}
