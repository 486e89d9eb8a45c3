#!/usr/bin/env bash
# Runs of `tarn train --gpus N` on the GPUs that are here:  tests/cuda/nccl_runs.sh BUILD
#
# 1, 2 and 4 ranks give the same checkpoints, byte for byte; a run whose rank was killed ends within seconds with one
# sentence, leaves no process, and is resumed by another number of ranks to the bits of a run that was never stopped.
# Ranks share the GPUs: each has an NCCL_HOSTID of its own. The last line reads `N passed, N failed, N skipped`.
set -uo pipefail

tarn=$(cd "${1:?usage: tests/cuda/nccl_runs.sh BUILD}" && pwd)/tarn || exit
work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
cd "$work" || exit
export NCCL_HOSTID=test NCCL_SOCKET_IFNAME=lo XDG_CACHE_HOME=$work/cache TARN_THREADS=${TARN_THREADS:-2}
passed=0 failed=0

check() { # check NAME COMMAND...: counts
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
    fi
}

same() { # same FOLDER OTHER: the weights and the optimizer's state of two runs
    cmp "$1/model.safetensors" "$2/model.safetensors" && cmp "$1/optimizer.safetensors" "$2/optimizer.safetensors"
}

train() { # train FOLDER RANKS STEPS ARGUMENT...
    local folder=$1 ranks=$2 steps=$3
    shift 3
    timeout 100 "$tarn" train --data text:text.txt --model gpt2 --layers 2 --heads 2 --hidden-size 64 --context 64 \
        --batch-size 16 --micro-batch 2 --dropout 0.1 --clip-norm 0.5 --eval-batches 1 --eval-every 20 --seed 3 \
        --schedule constant --virtual-ranks 4 --steps "$steps" --gpus "$ranks" --out "$folder" "$@" > "$folder.log" 2>&1
}

ranks_of() { # ranks_of: the processes of ranks that are there
    grep -lsz '^TARN_RANK_SOCKETS=' /proc/[0-9]*/environ | cut -d/ -f3
}

step_of() { # step_of FOLDER: of its checkpoint
    local step
    step=$(sed -n 's/.*"step": *\([0-9]*\).*/\1/p' "$1/trainer.json" 2> /dev/null | head -1)
    echo "${step:-0}"
}

kill_one() { # kill_one: starts a run of 4 ranks, kills one after its first checkpoint, and waits for the end
    local run began=0 victim
    train killed 4 100000 &
    run=$!
    while [ "$(step_of killed)" -lt 20 ] && kill -0 $run 2> /dev/null; do sleep 0.1; done
    victim=$(ranks_of | sed -n 3p)
    began=$(date +%s%N)
    kill -9 "$victim"
    wait $run
    status=$?
    ended=$((($(date +%s%N) - began) / 1000000))
    echo "      status $status, $ended ms after the kill: $(grep -a 'tarn train: ' killed.log)"
    [ $status = 1 ] && [ $ended -lt 10000 ] &&
        [ "$(grep -ac 'tarn train: rank [0-3] on .*it has ended' killed.log)" = 1 ]
}

resume() { # resume: the killed run on 2 ranks, to its next evaluation, against one that was never stopped
    local step
    step=$(($(step_of killed) + 20))
    timeout 100 "$tarn" train --resume killed --steps $step --gpus 2 --quiet && train whole 1 $step && same whole killed
}

for i in $(seq 400); do echo "line $((i * i % 97)) of a text, the cat sat on mat $((i * 7 % 13))"; done > text.txt

for ranks in 1 2 4; do
    check "$ranks ranks train" train "run$ranks" $ranks 40
    grep -a '^  ranks ' "run$ranks.log" || tail -5 "run$ranks.log"
done
check "2 ranks are as one" same run1 run2
check "4 ranks are as one" same run1 run4
train zero 4 40 --zero 1
check "4 ranks with ZeRO-1 are as one" same run1 zero
train three 3 1
check "3 ranks of 4 virtual ones are refused" grep -aq 'start 1, 2 or 4' three.log
TARN_NCCL=off train host 2 40
train eager1 1 40 --capture off
train eager 2 40 --capture off
check "a captured run equals an eager one" same run1 eager1
check "captured ranks equal eager ones" same run2 eager
train captured 2 40 --capture on
check "every step can be captured" same run2 captured
check "sums through host memory are the same" same run1 host
check "a killed rank ends the run" kill_one
check "no rank is left" test -z "$(ranks_of)"
check "it is resumed on 2 ranks" resume
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
