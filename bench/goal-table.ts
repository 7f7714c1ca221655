import { asTable } from '../src/cli/table.ts'
import type { Verdict } from './goals.ts'
import { number, shown } from './spread.ts'

/** Every goal with its figure, for people. */
export function goalTable(verdicts: readonly Verdict[]): string {
  const rows = verdicts.map(({ goal, bound, figure, byHand, isReached }) => [
    String(goal.number),
    goal.what,
    `${goal.atLeast === undefined ? '≤' : '≥'} ${number(bound)}`,
    figure === undefined ? '-' : shown(figure),
    isReached === undefined ? 'not measured' : isReached ? 'reached' : 'NOT REACHED',
    byHand === undefined ? '' : shown(byHand),
  ])
  return asTable(['GOAL', '', 'BOUND', 'MEDIAN (RANGE)', '', 'BY HAND'], rows, [
    'right',
    'left',
    'right',
    'left',
    'left',
    'left',
  ])
}
