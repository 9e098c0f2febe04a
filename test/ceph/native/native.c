// A client of libcephfs itself, beside which the tests and the benchmark see the daemon:
//
//	native mksnap DIRECTORY NAME     makes a snapshot
//	native read|write FILE SIZE DEPTH SECONDS
//	                                 calls of SIZE bytes, DEPTH threads at once, in a file of 64 MiB;
//	                                 prints MiB/s and calls/s. A write is stable, as one of rstored.
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cephfs/libcephfs.h>

static struct ceph_mount_info *m;

static void check(int r, const char *what)
{
	if (r < 0) {
		fprintf(stderr, "native: %s: %s\n", what, strerror(-r));
		exit(1);
	}
}

enum { file_size = 64 << 20 };

static struct {
	int write;
	long size;
	struct Inode *in;
	Fh *fh;
	atomic_long next, done;
	atomic_int stop;
} load;

static void *work(void *unused)
{
	char *buf = malloc(load.size);

	memset(buf, 'x', load.size);
	while (!load.stop) {
		int64_t off = load.next++ * load.size % file_size;
		int r = load.write ? ceph_ll_write(m, load.fh, off, load.size, buf)
				   : ceph_ll_read(m, load.fh, off, load.size, buf);

		check(r, "transfer");
		if (r != load.size)
			check(-1, "a short transfer");
		if (load.write)
			check(ceph_ll_sync_inode(m, load.in, 0), "sync");
		load.done++;
	}
	return unused;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void run(char **arg)
{
	int depth = atoi(arg[3]);
	pthread_t *threads = calloc(depth, sizeof(*threads));
	UserPerm *root = ceph_userperm_new(0, 0, 0, NULL);
	struct Inode *top;
	struct ceph_statx stx;
	double begin, took;

	load.write = !strcmp(arg[0], "write");
	load.size = atol(arg[2]);
	check(ceph_ll_lookup_root(m, &top), "root");
	check(ceph_ll_create(m, top, arg[1], 0644, O_CREAT | O_RDWR, &load.in, &load.fh, &stx, 0, 0, root), arg[1]);
	char *zero = calloc(1, 1 << 20);
	for (long off = 0; off < file_size; off += 1 << 20)
		check(ceph_ll_write(m, load.fh, off, 1 << 20, zero), "fill");
	check(ceph_ll_sync_inode(m, load.in, 0), "sync");
	begin = now();
	for (int i = 0; i < depth; i++)
		pthread_create(&threads[i], NULL, work, NULL);
	while (now() - begin < atof(arg[4]))
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	load.stop = 1;
	for (int i = 0; i < depth; i++)
		pthread_join(threads[i], NULL);
	took = now() - begin;
	printf("%.1f %.0f\n", load.done * (double)load.size / took / (1 << 20), load.done / took);
	ceph_ll_close(m, load.fh);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	check(ceph_create(&m, NULL), "create");
	check(ceph_conf_read_file(m, NULL), "configuration");
	check(ceph_conf_set(m, "client_oc", "false"), "client_oc");
	check(ceph_mount(m, "/"), "mount");
	if (!strcmp(argv[1], "mksnap"))
		check(ceph_mksnap(m, argv[2], argv[3], 0755, NULL, 0), argv[3]);
	else if (argc == 6)
		run(argv + 1);
	check(ceph_unmount(m), "unmount");
	return 0;
}
