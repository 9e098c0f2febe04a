# The guest is switched off in the middle of its work; the server lets go of it.
m
random /tmp/src 8
exec 3>$M/open
(while :; do cp /tmp/src $M/file; done) &
sleep 1
echo 0 >"/run/host/$GUEST.rc"
$B dmesg >"/run/host/$GUEST.dmesg"
tell off
sleep 0.2
$B poweroff -n -f
