m
dbench -D $M -c /usr/share/dbench/client.txt -t 20 4 >/tmp/dbench.out 2>&1 || { tail -n 20 /tmp/dbench.out; die dbench; }
tail -n 3 /tmp/dbench.out
# It takes the semaphore with number 0 for a failure, and uses it all the same.
sed -i "/barrier semaphore/d" /tmp/dbench.out
if grep -iE 'failed|error' /tmp/dbench.out; then die "dbench met errors"; fi
umount $M
