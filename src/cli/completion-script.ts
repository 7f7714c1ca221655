import type { CompletionShell } from './completion-shells.ts'

/*
 * The scripts are thin: what can be completed, and how it is quoted, is worked out by "fencepost completion SHELL --answer".
 * They hand it the words on stdin, by a builtin of the shell, so that no password on the line shows in a list of processes;
 * they evaluate nothing, neither what was typed nor what comes back.
 */

const bash = String.raw`# Completion of fencepost for bash.
# In ~/.bashrc: source <(fencepost completion bash)

_fencepost() {
  local index reply program=fencepost
  COMPREPLY=()
  if [[ ${'$'}{COMP_WORDS[1]} == run ]]; then
    for ((index = 2; index < COMP_CWORD; index++)); do
      [[ ${'$'}{COMP_WORDS[index]} == -- ]] || continue
      _fencepost_command $((index + 1))
      return
    done
  fi
  [[ $1 == */* && -f $1 && -x $1 ]] && program=$1
  while IFS= read -r reply; do
    COMPREPLY+=("$reply")
  done < <(
    printf '%s\0' "$COMP_WORDBREAKS" "${'$'}{COMP_LINE:0:COMP_POINT}" | "$program" completion bash --answer 2>/dev/null
  )
}

# The command behind "--" begins at this word: it is completed as if it stood alone.
_fencepost_command() {
  local reply
  if declare -F _comp_command_offset >/dev/null; then
    _comp_command_offset "$1"
  elif declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif [[ $COMP_CWORD -eq $1 && ${'$'}{COMP_WORDS[COMP_CWORD]} != */* ]]; then
    while IFS= read -r reply; do
      COMPREPLY+=("$reply")
    done < <(compgen -c -- "${'$'}{COMP_WORDS[COMP_CWORD]}" | sort -u)
  else
    compopt -o bashdefault -o default 2>/dev/null
  fi
}

complete -F _fencepost fencepost
`

const zsh = String.raw`#compdef fencepost
# Completion of fencepost for zsh.
# In ~/.zshrc, after compinit: source <(fencepost completion zsh)

_fencepost() {
  local program=fencepost line value
  local -a names values shown
  integer behind=${'$'}{words[(i)--]}
  if [[ ${'$'}{words[2]} == run ]] && (( behind < CURRENT )); then
    # The command behind "--" is completed as if it stood alone.
    shift $behind words
    (( CURRENT -= behind ))
    _normal
    return
  fi
  value=${'$'}{(Q)words[1]}
  [[ $value == */* && -f $value && -x $value ]] && program=$value
  while IFS= read -r line; do
    value=${'$'}{line%%$'\t'*}
    if [[ $value == $line ]]; then
      names+=("$value")
    else
      values+=("$value")
      shown+=("${'$'}{(r:24:)value} ${'$'}{line#*$'\t'}")
    fi
  done < <(printf '%s\0' "${'$'}{(@Q)words[2,CURRENT-1]}" "${'$'}{(Q)PREFIX}" | "$program" completion zsh --answer 2>/dev/null)
  integer found=1
  (( $#names )) && compadd -a names && found=0
  (( $#values )) && compadd -l -d shown -a values && found=0
  return found
}

if [[ ${'$'}{funcstack[1]} == _fencepost ]]; then
  _fencepost "$@"
else
  compdef _fencepost fencepost
fi
`

const fish = String.raw`# Completion of fencepost for fish.
# Once: fencepost completion fish > ~/.config/fish/completions/fencepost.fish

function __fencepost_behind_dashes
    set -l words (commandline -opc)
    test "$words[2]" = run; and contains -- -- $words
end

function __fencepost_answer
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    # Without its quotes, one of which may be open.
    set -l current (string unescape -- "$typed"; or string unescape -- "$typed'"; or string unescape -- "$typed\"")
    set -l program fencepost
    if string match -q '*/*' -- "$words[1]"; and test -f "$words[1]" -a -x "$words[1]"
        set program $words[1]
    end
    set -e words[1]
    printf '%s\0' $words "$current" | $program completion fish --answer 2>/dev/null
end

# The command behind "--" is completed as if it stood alone.
function __fencepost_command
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -e words[1..(contains -i -- -- $words)]
    set -l line (string escape -- $words) "$current"
    complete -C "$line"
end

complete -c fencepost -f
complete -c fencepost -n 'not __fencepost_behind_dashes' -a '(__fencepost_answer)'
complete -c fencepost -n __fencepost_behind_dashes -a '(__fencepost_command)'
`

export const completionScripts: Readonly<Record<CompletionShell, string>> = { bash, zsh, fish }
