# The kernel's connection manager and rdma_rxe as client of test/rdma/rping.
timeout 20 rping -c -v -V -d -a "$TO" -C 10 -S "$SIZE" | tail -n 3
timeout 20 rping -c -V -a "$TO" -C 200 -S "$SIZE"
# ten at a time
pids=
for i in $($B seq 10); do
	timeout 40 rping -c -V -a "$TO" -C 20 -S 1000 &
	pids="$pids $!"
done
for p in $pids; do wait "$p"; done
tell done
