/** No column is cut to less than this, whatever becomes of the line. */
const narrowest = 6

// Characters that take two columns in a terminal, roughly: East Asian wide ones and emoji.
const wide =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u
const widthless = /^[\p{Mn}\p{Me}\p{Cf}]$/u
// oxlint-disable-next-line no-control-regex -- Control characters are what is looked for.
const control = /[\u0000-\u001f\u007f-\u009f]/g

/** What a program in another language has put into a name or label must not move the cursor. */
export function harmlessText(cell: string): string {
  return cell.replaceAll(control, '\ufffd')
}

/** How many columns of a terminal the text takes. */
export function widthOf(text: string): number {
  let width = 0
  for (const character of text) width += widthOfOne(character)
  return width
}

function widthOfOne(character: string): number {
  if (widthless.test(character)) return 0
  return wide.test(character) ? 2 : 1
}

/** The text, or its beginning and an ellipsis. */
export function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text
  let kept = ''
  let left = width - 1
  for (const character of text) {
    left -= widthOfOne(character)
    if (left < 0) break
    kept += character
  }
  return `${kept}…`
}

/**
 * Cuts cells so that a table of these rows fits into `width` columns, with `gap` between them: the widest column gives first, as those that
 * are narrow say more per character. Without a width nothing is cut. The first row is the head.
 */
export function fitted(
  rows: readonly (readonly string[])[],
  width: number | undefined,
  gap: number,
): string[][] {
  if (width === undefined) return rows.map((row) => [...row])
  const widths = (rows[0] ?? []).map((_, column) =>
    Math.max(...rows.map((row) => widthOf(row[column] ?? ''))),
  )
  let excess = widths.reduce((sum, one) => sum + one, 0) + gap * (widths.length - 1) - width
  while (excess > 0) {
    const widest = Math.max(...widths)
    if (widest <= narrowest) break
    // Down to the next widest at once, but not further than needed.
    const columns = widths.flatMap((one, index) => (one === widest ? [index] : []))
    const next = Math.max(narrowest, ...widths.filter((one) => one < widest))
    const step = Math.min(widest - next, Math.ceil(excess / columns.length))
    for (const column of columns) {
      const less = Math.min(step, excess)
      widths[column] = widest - less
      excess -= less
    }
  }
  return rows.map((row) => row.map((cell, column) => cut(cell, widths[column]!)))
}

/** The width of the terminal that standard output is; undefined when it is none, or does not tell. */
export function terminalWidth(stream: { isTTY?: boolean; columns?: number }): number | undefined {
  return stream.isTTY === true && stream.columns !== undefined && stream.columns > 0
    ? stream.columns
    : undefined
}
