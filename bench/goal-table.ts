import { asTable } from '../src/cli/table.ts'
import type { Verdict } from './goals.ts'
import { number, shown } from './spread.ts'

/** Every goal with its figure, for people. */
export function goalTable(verdicts: readonly Verdict[]): string {
  const rows = verdicts.map(({ goal, bound, figure, isReached }) => [
    String(goal.number),
    goal.what,
    `${goal.atLeast === undefined ? '≤' : '≥'} ${number(bound)}`,
    figure === undefined ? '-' : shown(figure),
    isReached === undefined ? 'not measured' : isReached ? 'reached' : 'NOT REACHED',
  ])
  return asTable(['GOAL', '', 'BOUND', 'MEDIAN (RANGE)', ''], rows, [
    'right',
    'left',
    'right',
    'left',
    'left',
  ])
}
