# shellcheck shell=bash disable=SC2034
# Shared by the scripts in this folder: source it, do not run it.
# Sets ROOT (the checkout, or an installation's share/tessera) and defines say, fail, usage, is_preset, presets, program_of,
# uses_gpus, fetches_kokkos, find_nvcc, find_hip, gpu_count, job_count, find_python.
# Exit codes are the program's: 2 command line, 3 environment, 6 files.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P) || exit 3

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
fail() { local code=$1; shift; say "$*"; exit "$code"; }
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }  # the comment that opens the script

# Presets of CMakePresets.json: whether a name is one of them, and all their names.
is_preset() { grep -qF "{\"name\": \"$1\", \"configurePreset\"" "$ROOT/CMakePresets.json"; }
presets() {
  local names
  mapfile -t names < <(sed -n 's/.*{"name": "\([^"]*\)", "configurePreset".*/\1/p' "$ROOT/CMakePresets.json" | sort -u)
  echo "${names[*]}"
}
# The program of a preset: the one that TESSERA_PROGRAM names, an installation's, or the build's. launching.py says the same.
program_of() {
  local built=$ROOT/build/$1/tessera installed=${ROOT%/*/*}/bin/tessera
  if [[ ! -e $ROOT/CMakePresets.json && -x $installed ]]; then built=$installed; fi
  echo "${TESSERA_PROGRAM:-$built}"
}
uses_gpus() { [[ $1 == cuda* ]]; }
fetches_kokkos() { [[ $1 == cuda* || $1 == hip || $1 == openmp ]]; }  # Debian's has neither GPUs nor threads

# The CUDA compiler: on the PATH, in CUDA_HOME, or where NVIDIA's packages put it.
find_nvcc() {
  command -v nvcc && return
  local place
  for place in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    [[ -n $place && -x $place/bin/nvcc ]] && { echo "$place/bin/nvcc"; return; }
  done
  return 1
}

# Exports what finds AMD's compiler: ROCm's own, or Debian's clang 16 with its HIP. CXX and CC name another.
find_hip() {
  local bin=${ROCM_PATH:-/opt/rocm}/bin name=amdclang bitcode
  bitcode=$(echo /usr/lib/*-linux-gnu/amdgcn/bitcode)
  if [[ -x $bin/amdclang++ ]]; then
    export ROCM_PATH=${bin%/bin}
  elif [[ -d $bitcode ]]; then
    export ROCM_PATH=/usr HIP_DEVICE_LIB_PATH=$bitcode
    bin=/usr/lib/llvm-16/bin name=clang
  fi
  export CXX=${CXX:-$bin/$name++} CC=${CC:-$bin/$name}
  command -v "$CXX" > /dev/null
}

# GPUs that a program started here would see.
gpu_count() {
  if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
    local devices
    IFS=, read -r -a devices <<< "$CUDA_VISIBLE_DEVICES"
    echo "${#devices[@]}"
  else
    { nvidia-smi --list-gpus 2> /dev/null || true; } | grep -c '^GPU' || true
  fi
}

# Compilers or tests to run in parallel: at most one per core and per 1.5 GiB of free memory. TESSERA_JOBS overrides.
job_count() {
  local cores kib=0 limit=0 used=0 jobs
  if [[ -n ${TESSERA_JOBS:-} ]]; then
    [[ $TESSERA_JOBS =~ ^[1-9][0-9]*$ ]] || fail 2 "TESSERA_JOBS must be a whole number from 1, not '$TESSERA_JOBS'"
    echo "$TESSERA_JOBS"
    return
  fi
  cores=$(nproc)
  [[ -r /proc/meminfo ]] && kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  if [[ -r /sys/fs/cgroup/memory.max ]]; then  # a container may hold less than the machine has
    read -r limit < /sys/fs/cgroup/memory.max
    read -r used < /sys/fs/cgroup/memory.current || used=0
    if [[ $limit =~ ^[0-9]+$ ]] && (((limit - used) / 1024 < kib)); then kib=$(((limit - used) / 1024)); fi
  fi
  jobs=$((kib / (1536 * 1024)))
  ((jobs < cores)) || jobs=$cores
  ((jobs > 0)) || jobs=1
  echo "$jobs"
}

# The first python3 that can import the named modules: the one on PATH may not see the distribution's packages.
find_python() {
  local python modules
  modules=$(IFS=,; echo "$*")
  for python in "${TESSERA_PYTHON:-}" python3 /usr/bin/python3; do
    [[ -n $python ]] && "$python" -c "import $modules" 2> /dev/null && { echo "$python"; return; }
  done
  return 1
}
