#!/bin/sh
# Measures `ruvllm serve --device gpu` on this machine: endurance and device memory.
#
#   sh measure.sh [REQUESTS [OUT]]     10000 requests; JSON documents and logs go to the folder OUT
#
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

model=${MODEL:-/tmp/ruvllm-llama-1b.gguf}
[ -f "$model" ] || ./ruvllm-tools gen-model --shape llama-1b --type q4_k_m "$model"

# Documents of the servers that ended well, for the common one.
{ printf '{"doctor": '; cat "$out/doctor.json"; } >"$out/all.json"

# NAME, ARGUMENTS OF THE MODEL, BUDGET, KV BUDGET
endure() {
    echo "== $1: $requests requests, budget $3, keys and values $4" >&2
    if ./serving --program ./ruvllm --endurance "$requests" --streams 32 \
        --program-model "$2 --device $device --gpu-cache $out/kernels" \
        --program-serve "--gpu-sequences 32 --gpu-memory $3 --kv-budget $4" \
        --json "$out/$1.json" 2>"$out/$1.log"; then
        { printf ', "%s": ' "$1"; cat "$out/$1.json"; } >>"$out/all.json"
    else
        echo "$1 failed:" >&2
        tail -5 "$out/$1.log" >&2
    fi
}

# The built-in model: beside its few buffers the device shows what the driver takes for a process.
endure builtin '' 512MiB 128MiB
endure llama-1b "-m $model" 4GiB 2GiB
# A budget that the passes of all sizes together exceed.
endure llama-1b-tight "-m $model" 1408MiB 512MiB
echo '}' >>"$out/all.json"
echo "== all: $out/all.json" >&2
