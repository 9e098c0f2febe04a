#!/bin/sh
# Runs every fuzz target of the tree in turn, each for the time given.
set -eu
go=$1 time=$2
grep -rlE '^func Fuzz' --include='*_test.go' . | sort | while read -r file; do
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r target; do
		echo "== $(dirname "$file") $target"
		"$go" test -C "$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -parallel 2 . </dev/null
	done
done
