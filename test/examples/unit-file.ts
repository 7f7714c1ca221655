/** A unit file of systemd, as far as the examples use the format: sections of settings, each given once. */
export class UnitFile {
  readonly #settings = new Map<string, string>()

  constructor(text: string) {
    let section = ''
    for (const line of text.split('\n')) {
      if (line === '' || line.startsWith('#')) continue
      const header = /^\[(\w+)\]$/.exec(line)
      const setting = /^(\w+)=(.*)$/.exec(line)
      if (header !== null) section = header[1]!
      else if (setting === null || this.#settings.has(`${section}.${setting[1]}`)) {
        throw new Error(`not a setting, or given twice: ${line}`)
      } else this.#settings.set(`${section}.${setting[1]}`, setting[2]!)
    }
  }

  get(section: string, name: string): string {
    const value = this.#settings.get(`${section}.${name}`)
    if (value === undefined) throw new Error(`there is no ${name} in [${section}]`)
    return value
  }

  has(section: string, name: string): boolean {
    return this.#settings.has(`${section}.${name}`)
  }

  /** A time span in milliseconds: of one number and one unit. */
  span(section: string, name: string): number {
    const [, count, unit] = /^(\d+)(s|min|h)$/.exec(this.get(section, name)) ?? []
    const units: Readonly<Record<string, number>> = { s: 1000, min: 60_000, h: 3_600_000 }
    if (unit === undefined) throw new Error(`not a time span: ${this.get(section, name)}`)
    return Number(count) * units[unit]!
  }
}
