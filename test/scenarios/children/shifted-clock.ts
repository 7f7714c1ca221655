// Loaded before anything else: the wall clock of this process is off, and can be set.
const trueNow = Date.now
let offMs = Number(process.env['CLOCK_OFF_MS'])
Date.now = () => trueNow() + offMs
Object.assign(globalThis, {
  stepClock(ms: number): void {
    offMs += ms
  },
})
