#!/bin/sh
# Checks every kernel beside float64, and measures kernels (GB/s, TFLOP/s), a model (tokens/s, beside
# llama.cpp where the archive has it) and `ruvllm serve --device gpu` (endurance, device memory) on
# this machine.
#
#   sh measure.sh [REQUESTS [OUT]]     10000 requests; JSON documents and logs go to the folder OUT
#
# PARTS='kernels speed server' names the parts to run; all without it.
# DEVICE=gpu:N selects another adapter, MODEL=FILE another model in place of a random one of 1.2
# billion parameters. VK_DRIVER_FILES names a driver that the loader does not find by itself.
set -eu
requests=${1:-10000}
out=${2:-results}
device=${DEVICE:-gpu}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
if ! /sbin/ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1 '; then
    export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

./ruvllm --version
./ruvllm doctor --gpu --json | tee "$out/doctor.json"
nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || echo 'no nvidia-smi: no figures of the driver' >&2

# SHAPE FILE: a random model, unless the file is there
make_model() {
    [ -f "$2" ] || ./ruvllm-tools gen-model --shape "$1" --type q4_k_m "$2"
}
model=${MODEL:-/tmp/ruvllm-llama-1b.gguf}
make_model llama-1b "$model"

# Documents of the parts that ended well, for the common one.
{ printf '{"doctor": '; cat "$out/doctor.json"; } >"$out/all.json"

# True if a part is to run.
wanted() {
    case " ${PARTS:-kernels speed server} " in *" $1 "*) ;; *) return 1 ;; esac
}

# NAME: adds its document.
add() {
    { printf ', "%s": ' "$1"; cat "$out/$1.json"; } >>"$out/all.json"
}

if wanted kernels; then
    echo '== kernels: errors of each, GB/s, TFLOP/s' >&2
    case $device in gpu:*) adapter="--adapter ${device#gpu:}" ;; *) adapter= ;; esac
    # shellcheck disable=SC2086
    if ./gpu-bench $adapter --json "$out/kernels.json" >"$out/kernels.txt"; then
        add kernels
    else
        echo 'a kernel failed:' >&2
        grep FAILED "$out/kernels.txt" >&2 || true
    fi
    cat "$out/kernels.txt"
fi

if wanted speed; then
    echo '== tokens/s, in turn' >&2
    for round in 1 2 3; do
        for depth in 0 4096; do
            ./ruvllm bench --device "$device" --model "$model" -p 512 -n 64 -g 64 -d $depth -r 5
        done
        if [ -x peer/llama-bench ]; then
            LD_LIBRARY_PATH="$PWD/peer${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
                ./peer/llama-bench -m "$model" -p 512 -n 64 -d 0,4096 -r 5 -ngl 99 -fa 1
        fi
    done | tee "$out/speed.txt"
fi

# NAME, ARGUMENTS OF THE MODEL, BUDGET, KV BUDGET
endure() {
    echo "== $1: $requests requests, budget $3, keys and values $4" >&2
    if ./serving --program ./ruvllm --endurance "$requests" --streams 32 \
        --program-model "$2 --device $device --gpu-cache $out/kernels" \
        --program-serve "--gpu-sequences 32 --gpu-memory $3 --kv-budget $4" \
        --json "$out/$1.json" 2>"$out/$1.log"; then
        add "$1"
    else
        echo "$1 failed:" >&2
        tail -5 "$out/$1.log" >&2
    fi
}

if wanted server; then
    # A small model: beside its few buffers the device shows what the driver takes for a process.
    small=/tmp/ruvllm-llama-110m.gguf
    make_model llama-110m "$small"
    endure llama-110m "-m $small" 1GiB 128MiB
    endure llama-1b "-m $model" 4GiB 2GiB
    # A budget that the passes of all sizes together exceed.
    endure llama-1b-tight "-m $model" 1408MiB 512MiB
fi
echo '}' >>"$out/all.json"
echo "== all: $out/all.json" >&2
