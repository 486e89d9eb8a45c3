# bash completion for tarn

_tarn()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local commands="info demo train runs board eval predict generate chat serve pull"
    commands+=" tokenize data inspect quantize convert ops"
    commands+=" bench"
    local options="--help"
    commands+=" version help"
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
    --model)
        local models="mlp lenet resnet20 resnet18 resnet34 resnet50 gpt2 gpt2-124m gpt2-350m gpt2-774m gpt2-1.5b"
        models+=" llama llama-1b llama-3b smollm-135m mistral qwen2 qwen3 phi3 phi-3-mini smollm3 granite olmo2"
        models+=" starcoder2 gpt_neox stablelm gemma gemma2 gemma-2-2b gemma3_text"
        mapfile -t COMPREPLY < <(compgen -W "$models" -- "$current")
        return
        ;;
    --optimizer)
        mapfile -t COMPREPLY < <(compgen -W "sgd adam adamw" -- "$current")
        return
        ;;
    --schedule)
        mapfile -t COMPREPLY < <(compgen -W "constant linear cosine step one-cycle" -- "$current")
        return
        ;;
    --data)
        local data="digits images: mnist: cifar10: idx: csv: npy: text: shards: chats:"
        mapfile -t COMPREPLY < <(compgen -W "$data" -- "$current")
        return
        ;;
    --quantize)
        mapfile -t COMPREPLY < <(compgen -W "q8_0 q4_0 q4_k q6_k" -- "$current")
        return
        ;;
    --merge)
        mapfile -t COMPREPLY < <(compgen -W "folder gguf" -- "$current")
        return
        ;;
    --recompute)
        mapfile -t COMPREPLY < <(compgen -W "none selective full" -- "$current")
        return
        ;;
    --capture)
        mapfile -t COMPREPLY < <(compgen -W "auto on off" -- "$current")
        return
        ;;
    --zero)
        mapfile -t COMPREPLY < <(compgen -W "off 1" -- "$current")
        return
        ;;
    --task)
        mapfile -t COMPREPLY < <(compgen -W "auto classify regress" -- "$current")
        return
        ;;
    --delimiter)
        mapfile -t COMPREPLY < <(compgen -W "auto comma semicolon tab" -- "$current")
        return
        ;;
    --decimal)
        mapfile -t COMPREPLY < <(compgen -W "auto point comma" -- "$current")
        return
        ;;
    --header)
        mapfile -t COMPREPLY < <(compgen -W "auto yes no" -- "$current")
        return
        ;;
    --precision)
        mapfile -t COMPREPLY < <(compgen -W "f32 tf32 bf16 auto" -- "$current")
        return
        ;;
    --speculate)
        mapfile -t COMPREPLY < <(compgen -W "off ngram draft" -- "$current")
        return
        ;;
    --draft-model)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
        ;;
    --kv-type)
        mapfile -t COMPREPLY < <(compgen -W "model f32 bf16 f16 q8_0" -- "$current")
        return
        ;;
    --on-full)
        mapfile -t COMPREPLY < <(compgen -W "refuse forget" -- "$current")
        return
        ;;
    --prompt-file | --tools)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
        ;;
    --type)
        local types="Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_0 Q4_1 Q4_K_S Q4_K_M Q5_0 Q5_1 Q5_K_S Q5_K_M Q6_K Q8_0 IQ4_NL IQ4_XS"
        types+=" q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs f16 bf16 f32"
        mapfile -t COMPREPLY < <(compgen -W "$types" -- "$current")
        return
        ;;
    --tokenizer)
        mapfile -t COMPREPLY < <(compgen -f -W "bytes characters" -- "$current")
        return
        ;;
    --out | --resume | --prepare)
        mapfile -t COMPREPLY < <(compgen -d -- "$current")
        return
        ;;
    --threads | --only | --runs | --mlp-sizes | --epochs | --steps | --batch-size | --lr) return ;;
    --weight-decay | --momentum | --warmup | --lr-step | --lr-step-epochs | --lr-gamma) return ;;
    --image-size | --crop-scale | --jitter | --mistakes) return ;;
    --clip-norm | --label-smoothing | --seed | --workers | --patience | --eval-every | --log-every | --top) return ;;
    --ema | --min-lr | --beta2 | --layers | --heads | --kv-heads | --hidden-size | --ffn-size | --context) return ;;
    --vocab-size | --dropout | --micro-batch | --eval-batches | --sample | --keep) return ;;
    --ranks | --gpus | --virtual-ranks | --rank-timeout | --bucket-size) return ;;
    --add-tokens | --lora | --lora-alpha | --lora-dropout | --lora-targets | --lora-modules-to-save) return ;;
    --batch | --profile-steps | --ids | --tokens | --max-tokens | --temperature | --top-k | --top-p) return ;;
    --min-p | --repeat-penalty | --repeat-last-n | --frequency-penalty | --presence-penalty | --draft-tokens) return ;;
    --revision | --include | --target | --drop) return ;;
    --stop | --n | --top-logprobs | --gpu-layers | --tensor-split | --prefill-chunk | --system | --prompt) return ;;
    --text | --train | --val-fraction | --shard-tokens | --field | --separator) return ;;
    esac

    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$commands --help" -- "$current")
        return
    fi
    case ${COMP_WORDS[1]} in
    info) options+=" --json --threads" ;;
    demo) options+=" --threads --device --seed --out --steps --chat" ;;
    ops) options+=" --json --variants" ;;
    train)
        options+=" --json --threads --device --model --data --mlp-sizes --epochs --steps --batch-size"
        options+=" --optimizer --lr --weight-decay"
        options+=" --momentum --schedule --lr-step --lr-step-epochs --lr-gamma --warmup --clip-norm --ema --augment"
        options+=" --finetune --freeze --image-size --grey --crop-scale --jitter"
        options+=" --label-smoothing --seed --workers --out --overwrite --resume --patience"
        options+=" --eval-every --log-every --dry-run --quiet --min-lr --beta2 --tokenizer --layers --heads"
        options+=" --kv-heads --hidden-size --ffn-size --context --vocab-size --dropout"
        options+=" --micro-batch --eval-batches --sample --keep --precision --recompute --capture --profile"
        options+=" --profile-steps"
        options+=" --base --lora --lora-alpha --lora-dropout --lora-targets --lora-modules-to-save --quantize --merge"
        options+=" --template --add-tokens"
        options+=" --val --val-fraction --ignore-memory --ranks --gpus --virtual-ranks"
        options+=" --rank-timeout --zero --sync-batchnorm --overlap --bucket-size --reduce"
        options+=" --target --drop --task --delimiter --decimal --header"
        ;;
    eval)
        options+=" --confusion --mistakes --ranks --gpus"
        options+=" --json --threads --device --data --batch-size --gpu-layers --adapter --checkpoint --template"
        options+=" --tensor-split"
        ;;
    runs) options+=" --json --compare --out" ;;
    board) options+=" --port" ;;
    serve)
        options+=" --host --port --api-key-file --origin --alias --lora --context --sequences --kv-memory"
        options+=" --swap-memory --kv-type --queue --drain --prefill-chunk --speculate --draft-model --draft-tokens"
        options+=" --threads --device --gpu-layers --tensor-split --dtype --adapter --checkpoint --template"
        ;;
    pull) options+=" --json --quiet --revision --include" ;;
    predict) options+=" --json --threads --device --top --checkpoint --output" ;;
    generate)
        options+=" --json --threads --device --dtype --ids --max-tokens --temperature --top-k --top-p --min-p"
        options+=" --repeat-penalty --repeat-last-n --frequency-penalty --presence-penalty --seed"
        options+=" --ignore-eos --no-slide --stop --prompt-file --echo --n --top-logprobs --kv-type"
        options+=" --gpu-layers --tensor-split --prefill-chunk --context --adapter --checkpoint"
        options+=" --grammar --json-schema --regex --json-object --speculate --draft-model --draft-tokens"
        ;;
    chat)
        options+=" --threads --device --dtype --max-tokens --temperature --top-k --top-p --min-p"
        options+=" --repeat-penalty --repeat-last-n --frequency-penalty --presence-penalty --seed --system --tools"
        options+=" --on-full --no-slide --kv-type --gpu-layers --prefill-chunk --context --adapter"
        options+=" --checkpoint --template --grammar --json-schema --regex --json-object"
        options+=" --speculate --draft-model --draft-tokens --quiet --no-history --tensor-split"
        ;;
    tokenize)
        options+=" --json --threads --quiet --tokenizer --text --decode --pieces --special-as-text"
        options+=" --add-special --train --out --prepare"
        options+=" --val-fraction --shard-tokens --json-lines --field --separator --no-separator --parse-special"
        ;;
    data) options+=" --json --model --context --template --add-tokens --val --val-fraction --seed --show" ;;
    inspect) options+=" --json" ;;
    quantize) options+=" --type --imatrix --adapter --checkpoint --force --quiet --json --threads" ;;
    convert) options+=" --type --adapter --base --checkpoint --force --quiet --json --threads" ;;
    bench)
        options+=" --json --threads --device"
        case ${COMP_WORDS[2]} in
        matmul) options+=" --sizes --runs --dtype" ;;
        ops) options+=" --sizes --runs --dtypes --only" ;;
        weights) options+=" --runs --only" ;;
        comm) options=" --sizes --runs --ranks --gpus --json --threads --help" ;;
        train)
            options+=" --model --batch --micro-batch --steps --warmup --mlp-sizes --optimizer --clip-norm"
            options+=" --layers --heads --kv-heads --hidden-size --ffn-size --context --vocab-size"
            options+=" --dropout --precision --recompute --capture --workers --seed --lora --lora-alpha"
            options+=" --lora-dropout --lora-targets --lora-modules-to-save --ema"
            ;;
        decode) options+=" --model --dtype --prompt --tokens --n --kv-type --gpu-layers --prefill-chunk --runs" ;;
        serve)
            options+=" --engine --clients --rate --requests --seconds --prompt-tokens --new-tokens --seed"
            options+=" --api-key-file"
            options+=" --dtype --adapter --checkpoint --kv-type --context --sequences --kv-memory --swap-memory"
            options+=" --gpu-layers --prefill-chunk --queue --speculate --draft-model --draft-tokens"
            ;;
        *) options="matmul ops weights decode serve train comm --help" ;;
        esac
        ;;
    help) options=$commands ;;
    *) options= ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    # Runs, configurations, images, models and texts are files.
    local with_files="@(train|runs|board|eval|predict|generate|chat|serve|tokenize|data|inspect|quantize|convert)"
    # shellcheck disable=SC2053 # a pattern
    if [[ ${COMP_WORDS[1]} == $with_files || "${COMP_WORDS[*]:1:2}" == "bench serve" ]] && [[ $current != -* ]]; then
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -F _tarn tarn
