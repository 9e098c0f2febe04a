/*
 * The load of ../load by libnfs: the same operations, depth and output, over TCP.
 *
 *	load URL OP SIZE DEPTH SECONDS FILESIZE
 *
 * URL is nfs://HOST/PATH?nfsport=N&mountport=N, where PATH is an export that has what
 * ../load needs. Calls are made one below the other on one connection, as many at a
 * time as DEPTH says, by the raw interface of the library: that of its files would
 * look names up again and copy.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-nfs.h>

/* What nfs_get_fh returns; the library's own header of it is not installed. */
struct handle { int len; char *val; };

static struct rpc_context *rpc;
static nfs_fh3 file, dir;
static char *op;
static uint64_t size, depth, filesize, next, inflight, ops, bytes, names;
static int measuring, stopping;
static char *payload;
static uint64_t seed = 88172645463325252ull;
static double *lat;
static size_t nlat, caplat;

struct call { double began; uint64_t n; int second; char name[32]; };

static void die(const char *what, const char *why)
{
	fprintf(stderr, "libnfs %s: %s: %s\n", op, what, why);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

static void issue(struct call *c);

static void done(struct call *c, uint64_t n)
{
	inflight--;
	if (measuring) {
		if (strcmp(op, "readdir"))
			ops++;
		bytes += n;
		if (nlat == caplat) {
			caplat = caplat ? 2 * caplat : 1 << 16;
			lat = realloc(lat, caplat * sizeof *lat);
		}
		lat[nlat++] = now() - c->began;
	}
	if (stopping)
		free(c);
	else
		issue(c);
}

static void check(int status, void *data, int *res)
{
	if (status != RPC_STATUS_SUCCESS)
		die("call", status == RPC_STATUS_ERROR ? (char *)data : "cancelled");
	if (*res != 0)
		die("server", nfsstat3_to_str(*res));
}

static void got_read(struct rpc_context *r, int status, void *data, void *p)
{
	READ3res *res = data;
	check(status, data, (int *)(status ? 0 : &res->status));
	if (res->READ3res_u.resok.count != size)
		die("READ", "short");
	done(p, size);
}

static void got_commit(struct rpc_context *r, int status, void *data, void *p)
{
	COMMIT3res *res = data;
	check(status, data, (int *)(status ? 0 : &res->status));
	done(p, size);
}

static void got_write(struct rpc_context *r, int status, void *data, void *p)
{
	WRITE3res *res = data;
	struct call *c = p;
	check(status, data, (int *)(status ? 0 : &res->status));
	if (res->WRITE3res_u.resok.count != size)
		die("WRITE", "short");
	/* A pass over the file ends with a COMMIT. */
	if ((c->n + 1) % (filesize / size) == 0) {
		COMMIT3args a = {.file = file};
		if (rpc_nfs3_commit_async(rpc, got_commit, &a, p))
			die("COMMIT", rpc_get_error(rpc));
		return;
	}
	done(p, size);
}

static void got_getattr(struct rpc_context *r, int status, void *data, void *p)
{
	GETATTR3res *res = data;
	check(status, data, (int *)(status ? 0 : &res->status));
	done(p, 0);
}

static void got_lookup(struct rpc_context *r, int status, void *data, void *p)
{
	LOOKUP3res *res = data;
	check(status, data, (int *)(status ? 0 : &res->status));
	done(p, 0);
}

static void got_remove(struct rpc_context *r, int status, void *data, void *p)
{
	REMOVE3res *res = data;
	check(status, data, (int *)(status ? 0 : &res->status));
	done(p, 0);
}

static void got_create(struct rpc_context *r, int status, void *data, void *p)
{
	CREATE3res *res = data;
	struct call *c = p;
	REMOVE3args a = {.object = {.dir = dir, .name = c->name}};
	check(status, data, (int *)(status ? 0 : &res->status));
	if (rpc_nfs3_remove_async(rpc, got_remove, &a, p))
		die("REMOVE", rpc_get_error(rpc));
}

static void got_readdir(struct rpc_context *r, int status, void *data, void *p);

static void readdir_from(struct call *c, uint64_t cookie, char *verf)
{
	READDIRPLUS3args a = {.dir = dir, .cookie = cookie, .dircount = 1 << 20, .maxcount = 1 << 20};
	memcpy(a.cookieverf, verf, sizeof a.cookieverf);
	if (rpc_nfs3_readdirplus_async(rpc, got_readdir, &a, c))
		die("READDIRPLUS", rpc_get_error(rpc));
}

static void got_readdir(struct rpc_context *r, int status, void *data, void *p)
{
	READDIRPLUS3res *res = data;
	struct call *c = p;
	uint64_t last = 0;
	check(status, data, (int *)(status ? 0 : &res->status));
	READDIRPLUS3resok *ok = &res->READDIRPLUS3res_u.resok;
	for (entryplus3 *e = ok->reply.entries; e; e = e->nextentry) {
		last = e->cookie;
		if (measuring)
			ops++; /* An entry is an operation here. */
	}
	if (!ok->reply.eof) {
		/* With no entry in it the answer would be the same for ever. */
		if (!ok->reply.entries)
			die("READDIRPLUS", "an answer without entries that is not the last");
		readdir_from(c, last, ok->cookieverf);
		return;
	}
	done(c, 0);
}

static void issue(struct call *c)
{
	uint64_t blocks = filesize / size;
	c->began = now();
	c->n = next++;
	inflight++;
	uint64_t off = (strncmp(op, "random-", 7) ? c->n % blocks : rnd() % blocks) * size;
	if (strstr(op, "read") && strcmp(op, "readdir")) {
		READ3args a = {.file = file, .offset = off, .count = size};
		if (rpc_nfs3_read_async(rpc, got_read, &a, c))
			die("READ", rpc_get_error(rpc));
	} else if (strstr(op, "write")) {
		WRITE3args a = {.file = file, .offset = off, .count = size, .stable = UNSTABLE,
				.data = {.data_len = size, .data_val = payload}};
		if (rpc_nfs3_write_async(rpc, got_write, &a, c))
			die("WRITE", rpc_get_error(rpc));
	} else if (!strcmp(op, "getattr")) {
		GETATTR3args a = {.object = file};
		if (rpc_nfs3_getattr_async(rpc, got_getattr, &a, c))
			die("GETATTR", rpc_get_error(rpc));
	} else if (!strcmp(op, "lookup")) {
		snprintf(c->name, sizeof c->name, "name-%06d", (int)(rnd() % names));
		LOOKUP3args a = {.what = {.dir = dir, .name = c->name}};
		if (rpc_nfs3_lookup_async(rpc, got_lookup, &a, c))
			die("LOOKUP", rpc_get_error(rpc));
	} else if (!strcmp(op, "create")) {
		snprintf(c->name, sizeof c->name, "new-%d-%08d", getpid(), (int)c->n);
		CREATE3args a = {.where = {.dir = dir, .name = c->name}, .how = {.mode = UNCHECKED}};
		sattr3 *s = &a.how.createhow3_u.obj_attributes;
		s->mode.set_it = 1;
		s->mode.set_mode3_u.mode = 0644;
		if (rpc_nfs3_create_async(rpc, got_create, &a, c))
			die("CREATE", rpc_get_error(rpc));
	} else if (!strcmp(op, "readdir")) {
		cookieverf3 zero = {0};
		readdir_from(c, 0, zero);
	} else {
		die("operation", "unknown");
	}
}

static void run(double until)
{
	while (now() < until && !(stopping && !inflight)) {
		struct pollfd p = {.fd = rpc_get_fd(rpc), .events = rpc_which_events(rpc)};
		if (poll(&p, 1, 100) < 0 && errno != EINTR)
			die("poll", strerror(errno));
		if (p.revents && rpc_service(rpc, p.revents) < 0)
			die("connection", rpc_get_error(rpc));
	}
}

static double cpu(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static nfs_fh3 handle(struct nfs_context *nfs, char *name, int isdir)
{
	struct nfsfh *f;
	struct handle *h;
	nfs_fh3 out;
	if (nfs_open(nfs, name, isdir ? O_RDONLY : O_RDWR, &f))
		die(name, nfs_get_error(nfs));
	h = (struct handle *)nfs_get_fh(f);
	out.data.data_len = h->len;
	out.data.data_val = malloc(h->len);
	memcpy(out.data.data_val, h->val, h->len);
	return out;
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: load URL OP SIZE DEPTH SECONDS FILESIZE\n");
		return 2;
	}
	op = argv[2];
	size = strtoull(argv[3], 0, 0);
	depth = strtoull(argv[4], 0, 0);
	double seconds = atof(argv[5]);
	filesize = strtoull(argv[6], 0, 0);
	names = 1000;
	payload = malloc(size);
	memset(payload, 'x', size);
	struct nfs_context *nfs = nfs_init_context();
	struct nfs_url *url = nfs_parse_url_dir(nfs, argv[1]);
	if (!url)
		die(argv[1], nfs_get_error(nfs));
	if (nfs_mount(nfs, url->server, url->path))
		die("mount", nfs_get_error(nfs));
	file = handle(nfs, "/file", 0);
	dir = handle(nfs, !strcmp(op, "readdir") ? "/large" : "/names", 1);
	rpc = nfs_get_rpc_context(nfs);
	int room = 8 << 20;
	setsockopt(rpc_get_fd(rpc), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
	setsockopt(rpc_get_fd(rpc), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
	for (uint64_t i = 0; i < depth; i++)
		issue(calloc(1, sizeof(struct call)));
	run(now() + seconds / 4); /* to get warm */
	puts("begin");
	fflush(stdout);
	double cpu0 = cpu(), began = now();
	measuring = 1;
	run(began + seconds);
	measuring = 0;
	double took = now() - began, used = cpu() - cpu0;
	puts("end");
	fflush(stdout);
	stopping = 1;
	run(now() + 30);
	if (inflight)
		die("the end", "calls are not answered");
	qsort(lat, nlat, sizeof *lat, ascending);
	printf("{\"ops\":%llu,\"bytes\":%llu,\"seconds\":%.6f,\"cpu\":%.6f,\"p50\":%.9f,\"p99\":%.9f}\n",
	       (unsigned long long)ops, (unsigned long long)bytes, took, used,
	       nlat ? lat[nlat / 2] : 0, nlat ? lat[nlat * 99 / 100] : 0);
	return 0;
}
