import { styleText } from 'node:util'

/** A line that is rewritten while something takes long; nothing at all where standard error is no terminal. */
export interface Progress extends Disposable {
  update(text: string): void
  done(): void
}

/** Shown only after so long: what is quick needs no line. */
const quickMs = 500

export function progress(first: string): Progress {
  const stream = process.stderr
  if (!stream.isTTY) return { update() {}, done() {}, [Symbol.dispose]() {} }
  const startedMs = performance.now()
  let text = first
  let isShown = false
  const draw = (): void => {
    const elapsed = Math.round((performance.now() - startedMs) / 1000)
    stream.write(`\r\u001b[K${styleText('dim', `${text} … ${elapsed} s`, { stream })}`)
    isShown = true
  }
  const timer = setInterval(draw, quickMs)
  const done = (): void => {
    clearInterval(timer)
    if (isShown) stream.write('\r\u001b[K')
    isShown = false
  }
  return {
    update(next) {
      text = next
    },
    done,
    [Symbol.dispose]: done,
  }
}
