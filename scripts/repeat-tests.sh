#!/usr/bin/env bash
# Runs the everyday tests of build/release again and again, under a condition that another machine may have; one line for each
# run, a table at the end. The logs of failures are in build/repeat/.
#   scripts/repeat-tests.sh [-n TIMES] CONDITION ...     five times each unless told
#     alone      as `./run test` does
#     busy       beside a busy loop for every core
#     one-core   pinned to the first core that may be used
#     user       as an ordinary user, on a copy of sources and build in a folder of that user's own; needs root, who makes
#                the user loopspec-test
# Needs a build: ./run build. Returns 1 when anything has failed.
set -uo pipefail
cd "$(dirname "$0")/.."

times=5
[ "${1:-}" != -n ] || { times=$2; shift 2; }
[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
[ -f build/release/CMakeCache.txt ] || { echo "no build in build/release: ./run build makes one" >&2; exit 2; }
logs=$PWD/build/repeat
mkdir -p "$logs"
user=loopspec-test
loops=()
stop_loops() {
  [ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null
  loops=()
}
trap stop_loops EXIT

# tests FOLDER JOBS [PREFIX ...]: the everyday tests of FOLDER/build/release.
tests() {
  local folder=$1 jobs=$2
  shift 2
  "$@" ctest --test-dir "$folder/build/release" --output-on-failure -j "$jobs" -LE long
}

# The paths of a build are absolute, so the user's copy is mounted where the original is: in a mount namespace of its own,
# which nobody else sees.
as_user() {
  [ "$(id -u)" -eq 0 ] || { echo "user: needs root, who makes the user $user"; return 2; }
  id "$user" >/dev/null 2>&1 || useradd -m "$user" || return 2
  local copy=/home/$user/copy
  if [ ! -d "$copy/build/release" ] || [ build/release/.ninja_log -nt "$copy/build/release/copied" ]; then
    rm -rf "$copy"
    mkdir -p "$copy/build" || return 2
    local built=(build/release)
    [ ! -d build/venv-python ] || built+=(build/venv-python)
    tar -cf - --exclude=./build --exclude=./.git . | tar -xf - -C "$copy" && cp -a "${built[@]}" "$copy/build/" || return 2
    touch "$copy/build/release/copied"
    chown -R "$user" "$copy"
  fi
  unshare --mount bash -c 'mount --bind "$1" "$2" && cd "$2" && exec setpriv --reuid "$3" --regid "$3" --init-groups \
    env -i HOME="/home/$3" USER="$3" PATH="$PATH" TERM="${TERM:-dumb}" LANG=de_DE.UTF-8 bash -c "umask 077; ulimit -n 1024
    ctest --test-dir build/release --output-on-failure -j $4 -LE long"' \
    bash "$copy" "$PWD" "$user" "$(nproc)"
}

once() {
  case "$1" in
    alone) tests "$PWD" "$(nproc)" ;;
    busy)
      for ((i = 0; i < $(nproc); i++)); do
        timeout 3600 sh -c 'while :; do :; done' &
        loops+=($!)
      done
      tests "$PWD" "$(nproc)"
      local status=$?
      stop_loops
      return $status
      ;;
    one-core)
      local cores
      cores=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
      tests "$PWD" 1 taskset -c "$cores"
      ;;
    user) as_user ;;
    *) echo "unknown condition: $1, expected alone, busy, one-core or user"; return 2 ;;
  esac
}

table=()
failed=0
for condition in "$@"; do
  passed=0 shortest=999999 longest=0
  for ((run = 1; run <= times; run++)); do
    log=$logs/$condition-$run.log
    begin=$SECONDS
    once "$condition" >"$log" 2>&1
    status=$?
    seconds=$((SECONDS - begin))
    if [ $status -eq 0 ]; then
      passed=$((passed + 1)) result=$(grep -h 'tests passed' "$log" | tail -n 1)
    else
      failed=1 result="FAILED: $(sed -n 's/^\t *[0-9]* - \(.*\)/\1/p' "$log" | grep -v '(Skipped)' | tr '\n' ' ')"
      result+="$(grep -ohE '^\[  FAILED  \] [A-Za-z0-9_/.]+' "$log" | sort -u | sed 's/.*\] //' | tr '\n' ' ')"
      grep -q 'The following tests FAILED' "$log" || result+=$(tail -n 1 "$log")
    fi
    [ $seconds -ge $shortest ] || shortest=$seconds
    [ $seconds -le $longest ] || longest=$seconds
    printf '%-9s %2d  %4d s  %s\n' "$condition" "$run" "$seconds" "$result"
  done
  table+=("$(printf '%-9s %7s %8s %9s' "$condition" "$passed/$times" "$shortest" "$longest")")
done
echo
printf '%-9s %7s %8s %9s\n' condition passed 'least s' 'most s'
printf '%s\n' "${table[@]}"
exit $failed
