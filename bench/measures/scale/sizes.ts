/** 1, 10, 100 … and the largest. */
export function powers(largest: number): number[] {
  const sizes: number[] = []
  for (let size = 1; size < largest; size *= 10) sizes.push(size)
  return [...sizes, largest]
}
