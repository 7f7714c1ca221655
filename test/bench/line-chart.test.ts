import { describe, expect, test } from 'vitest'
import { type Line, type LineChart, lineSvg } from '../../bench/line-chart.ts'

function line(name: string, points: readonly (readonly [number, number])[]): Line {
  return { name, points: points.map(([x, y]) => ({ x, y, min: y, max: y })) }
}

function chart(panels: readonly (readonly Line[])[]): LineChart {
  return { title: 'T', subtitle: 'S', panels: panels.map((lines, n) => ({ title: `P${n}`, lines })) }
}

/** The points of each line, in the picture's units. */
function drawn(picture: string): [number, number][][] {
  return [...picture.matchAll(/<path class="line \w+" d="M([\d. L]+)"/g)].map(([, path]) =>
    path!.split('L').map((point) => point.split(' ').map(Number) as [number, number]),
  )
}

describe('a line chart', () => {
  test('has equal steps for equal ratios, on both axes', () => {
    const picture = lineSvg(
      chart([
        [
          line('a', [
            [1, 1],
            [10, 0.1],
            [100, 10],
          ]),
        ],
      ]),
    )
    const [[[x1, y1], [x10, y10], [x100, y100]]] = drawn(picture) as [
      [[number, number], [number, number], [number, number]],
    ]
    expect(x10 - x1).toBeCloseTo(x100 - x10, 0)
    expect(y10 - y1).toBeCloseTo(y1 - y100, 0)
    expect(y100).toBeLessThan(y1)
  })

  test('has one vertical scale for all panels', () => {
    const [steep, flat] = drawn(
      lineSvg(
        chart([
          [
            line('a', [
              [1, 1],
              [10, 100],
            ]),
          ],
          [
            line('b', [
              [1, 1],
              [10, 10],
            ]),
          ],
        ]),
      ),
    ).map(([from, to]) => from![1] - to![1])
    expect(steep! / flat!).toBeCloseTo(2, 1)
  })

  test('has room for how far a point reaches', () => {
    const points = [{ x: 1, y: 1, min: 0.01, max: 1 }]
    const picture = lineSvg(chart([[{ name: 'a', points }]]))
    const [, from, to] = /class="reach first" d="M[\d.]+ ([\d.]+)V([\d.]+)"/.exec(picture)!.map(Number)
    const bottom = Number(/height="([\d.]+)"/.exec(picture)![1])
    expect(to! - from!).toBeGreaterThan(50)
    expect(to!).toBeLessThan(bottom)
  })

  test('writes what ends at the same place below one another', () => {
    const same = [
      line('a', [
        [1, 1],
        [10, 2],
      ]),
      line('b', [
        [1, 1],
        [10, 2],
      ]),
    ]
    const ends = [...lineSvg(chart([same])).matchAll(/<text x="\S+" y="([\d.]+)"[^>]*>2\.00</g)]
    expect(Number(ends[1]![1]) - Number(ends[0]![1])).toBeGreaterThanOrEqual(13)
  })

  test('says the same in words, knows the dark, and runs nothing', () => {
    const picture = lineSvg(
      chart([
        [
          line('a < b', [
            [1, 1],
            [5_000_000, 2],
          ]),
        ],
      ]),
    )
    expect(picture).toContain('<desc>S. P0: a &lt; b: 1 1.00, 5M 2.00.</desc>')
    expect(picture).toContain('prefers-color-scheme:dark')
    expect(picture).not.toMatch(/<script|href|url\(|on[a-z]+=/)
  })
})
