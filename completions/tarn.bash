# bash completion for tarn

_tarn()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local commands="info ops bench version help" options="--help"
    COMPREPLY=()

    case $previous in
    --device)
        # A colon splits words in bash, so indices are left to the user.
        mapfile -t COMPREPLY < <(compgen -W "auto cpu cuda opencl" -- "$current")
        return
        ;;
    --dtype)
        mapfile -t COMPREPLY < <(compgen -W "f32 f64 bf16 f16" -- "$current")
        return
        ;;
    --dtypes)
        mapfile -t COMPREPLY < <(compgen -W "f32 f64 bf16 f16 tf32" -- "$current")
        return
        ;;
    --sizes)
        [[ ${COMP_WORDS[2]} != ops ]] || mapfile -t COMPREPLY < <(compgen -W "model 4KiB 1MiB 64MiB" -- "$current")
        return
        ;;
    --threads | --only | --runs) return ;;
    esac

    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$commands --help" -- "$current")
        return
    fi
    case ${COMP_WORDS[1]} in
    info) options+=" --json --threads" ;;
    ops) options+=" --json" ;;
    bench)
        options+=" --json --threads --device --sizes --runs"
        case ${COMP_WORDS[2]} in
        matmul) options+=" --dtype" ;;
        ops) options+=" --dtypes --only" ;;
        *) options="matmul ops --help" ;;
        esac
        ;;
    help) options=$commands ;;
    *) options= ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
}
complete -F _tarn tarn
