"""Completion in bash: words together with files, and words with a colon, which bash splits."""

import os

from click.shell_completion import BashComplete, add_completion_class, split_arg_string

# Click's own script drops words when files are offered too, and receives `production`, `:` and `b4` for
# `production:b4`: bash splits words at COMP_WORDBREAKS, and replaces only the last part with the completion.
_SOURCE = r"""%(complete_func)s() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} response type value path
    local word=${line##*[[:space:]]} before=
    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && before=${word%%"${word##*:}"}
    response=$(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS=, read -r type value; do
        if [[ $type == plain ]]; then
            COMPREPLY+=("${value#"$before"}")
        elif [[ $type == file || $type == dir ]]; then
            while IFS= read -r path; do
                [[ -d $path ]] && path=$path/
                COMPREPLY+=("$(printf %%q "$path")")
            done < <(compgen -"${type:0:1}" -- "${word##*:}")
        fi
    done <<< "$response"
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *[/:] ]] && compopt -o nospace 2> /dev/null
    return 0
}

complete -o nosort -o default -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    source_template = _SOURCE

    def get_completion_args(self) -> tuple[list[str], str]:
        """Returns the words before the one to complete, and this one, of the line up to the cursor."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        unfinished = words and not line[-1:].isspace()
        return (words[:-1], words[-1]) if unfinished else (words, "")


def register() -> None:
    """Lets `_TFF_MF_COMPLETE=bash_source tff-mf` print this completion."""
    add_completion_class(_Bash, "bash")
