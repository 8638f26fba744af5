# trnflow's completion: `source <(trnflow completion @shell@)` in a shell, or its output in a file that the shell reads.
_trnflow() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "@commands@ --version --help" -- "$word"))
        return
    fi
    case "$before" in
        --until|--force) COMPREPLY=($(compgen -W "@stages@" -- "$word")); return ;;
        --on) COMPREPLY=($(compgen -W "@hardware@" -- "$word")); return ;;
    esac
    case "$command" in
@options@
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$word")); return ;;
    esac
    case "$command" in
        completion) COMPREPLY=($(compgen -W "bash zsh" -- "$word")); return ;;
        settings) COMPREPLY=($(compgen -W "@settings@" -- "$word")); return ;;
        @with_recipe@) ;;
        *) return ;;
    esac
    if [ "$COMP_CWORD" -eq 2 ]; then
        COMPREPLY=($(compgen -W "@recipes@" -- "$word") $(compgen -f -X '!*.y*ml' -- "$word"))
        return
    fi
    case "$command" in
        explain|show|get|accept) [ "$COMP_CWORD" -eq 3 ] && COMPREPLY=($(compgen -W "@stages@" -- "$word")) && return ;;
    esac
    COMPREPLY=($(compgen -W "@overrides@" -- "$word"))
    compopt -o nospace 2>/dev/null
}
complete -o bashdefault -F _trnflow trnflow
