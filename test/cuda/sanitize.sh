#!/bin/sh
# sanitize.sh CHECK_CUDA TOOLS GROUPS: the tools of compute-sanitizer over groups of check_cuda. A
# line for every pair; fails when one found something, could not run, or took SECONDS_EACH (300).
set -u
check=$1
tools=$2
groups=$3
sanitizer=${COMPUTE_SANITIZER:-compute-sanitizer}
command -v "$sanitizer" >/dev/null || {
    echo "sanitize.sh: no $sanitizer" >&2
    exit 1
}
failed=0
log=$(mktemp)

# Races that racecheck sees across a __syncthreads, in a kernel whose warpgroups have passed barriers
# of their own before: all checks passed, and every report names that kernel.
false_alarm() {
    [ "$tool" = racecheck ] && grep -q ', 0 failed$' "$log" &&
        grep -q 'Race reported.*tqk_group_whole' "$log" &&
        ! grep 'Race reported\|and \(Read\|Write\) access' "$log" | grep -qv tqk_group_whole
}

for tool in $tools; do
    for group in $groups; do
        extra=
        [ "$tool" != synccheck ] || extra='--num-cuda-barriers 4096'
        start=$(date +%s)
        # shellcheck disable=SC2086
        timeout "${SECONDS_EACH:-300}" "$sanitizer" --tool "$tool" $extra --error-exitcode 9 \
            "$check" "$group" >"$log" 2>&1
        code=$?
        verdict=ok
        if [ $code = 124 ]; then
            verdict='TOOK TOO LONG'
        elif [ $code != 0 ] && false_alarm; then
            verdict='ok, but for false alarms (docs/TESTING.md)'
        elif [ $code != 0 ]; then
            verdict="FAILED ($code)"
        fi
        printf '%-9s %-16s %s, %s, %s s\n' "$tool" "$group" "$verdict" \
            "$(grep -h 'SUMMARY' "$log" | sed 's/=* *//' | tr '\n' ' ')" "$(($(date +%s) - start))"
        case $verdict in
        ok*) ;;
        *)
            failed=1
            grep -v '^$' "$log" | head -40
            ;;
        esac
    done
done
rm -f "$log"
exit $failed
