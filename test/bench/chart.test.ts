import { describe, expect, test } from 'vitest'
import { type Bar, type Chart, svg } from '../../bench/chart.ts'
import { chartsOf } from '../../bench/charts.ts'

function bar(label: string, value: number, kind: Bar['kind'] = 'other', min = value, max = value): Bar {
  return { label, value, min, max, kind }
}

function chart(bars: readonly Bar[], more: Partial<Chart> = {}): Chart {
  return { title: 'T', subtitle: 'S', groups: [{ title: 'G', bars }], legend: [['ours', 'us']], ...more }
}

/** The lengths of the bars, from the one on top. The legend's squares come last and have no fraction. */
function lengths(picture: string): number[] {
  return [...picture.matchAll(/<rect class="(?:ours|other|lesser|floor)" x="250".* width="([\d.]+)"/g)].map(
    ([, length]) => Number(length),
  )
}

describe('a chart', () => {
  test('has bars as long as their values', () => {
    const [first, second] = lengths(svg(chart([bar('a', 4), bar('b', 1)])))
    expect(first! / second!).toBeCloseTo(4, 2)
  })

  test('has room for the range of its longest bar', () => {
    const picture = svg(chart([bar('a', 4, 'ours', 2, 8)]))
    expect(lengths(picture)).toEqual([180])
    expect(picture).toContain('d="M340 99H610')
    expect(picture).toContain('4.00 (2.00 … 8.00)')
  })

  test('with logarithmic scale has equal steps for equal ratios', () => {
    const picture = svg(chart([bar('a', 100), bar('b', 10), bar('c', 1)], { isLogarithmic: true }))
    const [a, b, c] = lengths(picture)
    expect(a! - b!).toBeCloseTo(b! - c!, 0)
    expect(c).toBeGreaterThan(0)
  })

  test('escapes what it is told', () => {
    const picture = svg(chart([bar('<a & "b">', 1)], { title: '1 < 2' }))
    expect(picture).toContain('&lt;a &amp; &quot;b&quot;&gt;')
    expect(picture).toContain('<title>1 &lt; 2</title>')
    expect(picture).not.toContain('<a &')
  })

  test('says the same in words, knows the dark, and runs nothing', () => {
    const picture = svg(chart([bar('a', 4, 'ours', 2, 8), bar('b', 1)]))
    expect(picture).toContain('<desc>S. G: a 4.00 (2.00 … 8.00), b 1.00.</desc>')
    expect(picture).toContain('prefers-color-scheme:dark')
    expect(picture).not.toMatch(/<script|href|url\(|on[a-z]+=/)
  })

  test('is not drawn from figures that are missing', () => {
    expect(Object.values(chartsOf({}))).toEqual([undefined, undefined, undefined])
  })

  test('of throughput leaves out the floor, and only outlines what is not durable', () => {
    const figure = (contender: string, median: number) => ({
      contender,
      workers: 64,
      perSecond: [1],
      ratio: { median, min: median, max: median },
      p50Ms: 1,
      p99Ms: 1,
      clientCpuUs: 1,
    })
    const durability = { floor: 'durable', fencepost: 'durable', redlock: 'not durable', etcd3: 'durable' }
    const figures = [figure('floor', 1), figure('etcd3', 0.2), figure('fencepost', 4), figure('redlock', 6)]
    const { throughput } = chartsOf({ lease: { durability, absent: [], figures } })
    expect(throughput!.groups[2]!.bars.map(({ label, kind }) => [label, kind])).toEqual([
      ['redlock', 'lesser'],
      ['fencepost', 'ours'],
      ['etcd3', 'other'],
    ])
  })
})
