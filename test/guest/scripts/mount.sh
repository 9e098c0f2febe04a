m "$OPTS"
there_and_back 1
there_and_back 64
umount $M
