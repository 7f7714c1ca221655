/** The shells that there is a completion script for. A file of its own, because the help must be quick. */
export const completionShells = ['bash', 'zsh', 'fish'] as const

export type CompletionShell = (typeof completionShells)[number]
