#!/usr/bin/env bash
# From an empty machine to a trained, evaluated and exported GUI agent (less than 20 minutes on 2 CPU cores).
#
#   bash launch/quickstart.sh            results in runs/quickstart
#   RUN=runs/other SEED=1 bash launch/quickstart.sh
#
# Interrupt it whenever you like: the same command goes on where it stopped. To start over, delete the run folder.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/setup.sh
make_venv .venv test

RUN=${RUN:-runs/quickstart}
SEED=${SEED:-0}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
# One heap that is not handed back: otherwise a train step on a CPU takes 100,000 page faults, a third of its time.
export MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184
python() { .venv/bin/python -m "$@"; }
once() { # once NAME COMMAND...: skips what an earlier run has finished
  local mark=$RUN/done/$1
  shift
  [ -e "$mark" ] && return
  "$@"
  mkdir -p "$RUN/done" && touch "$mark"
}
stage() { # stage NAME: trains one stage
  once "train-$1" python launch.train --config="configs/nano_$1.py:$RUN" --config.seed="$SEED" --workdir="$RUN/$1"
}
evaluate() { # evaluate NAME POLICY [FLAGS]: held-out tasks
  local name=$1 policy=$2
  shift 2
  once "evaluate-$name" python launch.evaluate --config=configs/nano.py --policy="$policy" --stage="$name" \
    --out="$RUN/evaluate" "$@"
}

SECONDS=0
once collect python launch.flywheel --config=configs/nano.py --config.seed="$SEED" \
  --out="$RUN/data/train" --example="$RUN/data/example" --trajectories=3000 \
  --slips=0.35
evaluate random random --config.seed="$SEED"
stage pretrain
evaluate pretrain "$RUN/pretrain"
stage sft
evaluate sft "$RUN/sft"
stage mrpo
evaluate mrpo "$RUN/mrpo" --config.evaluation.controls=True

once export python launch.export_hf --policy="$RUN/mrpo" --out="$RUN/export"
python launch.act --config=configs/nano.py --policy="$RUN/export" --image="$RUN/data/example.png" --family=mobile \
  --instruction="$(cat "$RUN/data/example.txt")"
python launch.report --run="$RUN"
echo "This took $((SECONDS / 60)) min $((SECONDS % 60)) s. Report: $RUN/report.html"
