import { Argument, type Command, Option } from 'commander'
import { completionShells } from '../completion-shells.ts'
import type { Invocation } from './invocation.ts'
import { manual } from './manual.ts'

export function defineShellCommands(program: Command, invocation: Invocation): void {
  const completion = program
    .command('completion')
    .helpGroup('Help:')
    .summary('complete commands and names of leases in your shell')
    .description(
      'Print a script that lets a shell complete commands, options, their values and the names of leases, and behind "--" of "fencepost run" the command itself.',
    )
    .addArgument(new Argument('<shell>', 'the shell').choices(completionShells))
    // What the scripts ask: the words come on stdin, since everybody may see the arguments of a process.
    .addOption(new Option('--answer').hideHelp())
    .action(
      invocation.report(async (shell: never, options: never) =>
        (await import('../completion.ts')).runCompletion(shell, options),
      ),
    )
  manual(completion, {
    sections: {
      Installing: `
For bash, in ~/.bashrc:

    source <(fencepost completion bash)

For zsh, in ~/.zshrc, after compinit:

    source <(fencepost completion zsh)

For fish, once:

    fencepost completion fish > ~/.config/fish/completions/fencepost.fish`,
    },
    environment: `
Names of leases are asked from the database that --database-url on the line or the environment names, or with --local from the
local server, if it runs. What does not answer within about a second has none; for one that is far away,
FENCEPOST_COMPLETION_WAIT gives it more time (such as 3s, up to a minute).`,
    exitCodes: [['0', 'printed']],
    examples: ['source <(fencepost completion bash)'],
  })
}
