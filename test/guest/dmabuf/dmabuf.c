/*
 * A library to load before a program (LD_PRELOAD), which gives every device of libibverbs ibv_reg_dmabuf_mr. It is a
 * test aid, beside the guests' kernel, whose rdma_rxe registers dma-bufs by ../rxe.patch: the libraries of cards have
 * this operation (libmlx5, libirdma, libefa), librxe and libsiw of rdma-core have not, and libibverbs refuses for them without asking
 * the kernel. What it does is what those of the cards' libraries do. All else, the library, its commands to the kernel and
 * the kernel, is as it is.
 *
 * A device's library hands its operations to verbs_set_ops, a function of libibverbs for such libraries alone. This
 * file has a function of that name before it, adds the one, and sees whether it arrived.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

/* The place in the table of operations of rdma-core 44, which has no version. It has fewer entries than this one. */
enum { REG_DMABUF_MR = 67, ENTRIES = 256 };

static void (*set_ops)(struct verbs_context *, const void *);
static int (*cmd_reg)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, void *);
static struct ibv_mr *(*reg)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);

static __thread struct ibv_pd probe;
static __thread int arrived;

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	/* A struct verbs_mr, which is an ibv_mr and 8 bytes. The device's library frees it. */
	struct ibv_mr *mr;
	int err;

	if (pd == &probe) {
		arrived = 1;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr) + 64);
	if (!mr)
		return NULL;
	err = cmd_reg(pd, offset, length, iova, fd, access, mr);
	if (err) {
		free(mr);
		errno = err;
		return NULL;
	}
	return mr;
}

static void *find(void *lib, const char *name)
{
	void *f = lib ? dlsym(lib, name) : NULL;

	if (!f) {
		fprintf(stderr, "dmabuf.so: %s\n", dlerror());
		abort();
	}
	return f;
}

void verbs_set_ops(struct verbs_context *ctx, const void *ops)
{
	void *table[ENTRIES] = { [REG_DMABUF_MR] = reg_dmabuf_mr };
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);

	set_ops = find(lib, "verbs_set_ops");
	cmd_reg = find(lib, "ibv_cmd_reg_dmabuf_mr");
	reg = find(lib, "ibv_reg_dmabuf_mr");
	set_ops(ctx, ops);
	set_ops(ctx, table);

	probe.context = &ctx->context;
	arrived = 0;
	reg(&probe, 0, 0, 0, -1, 0);
	if (!arrived) {
		fprintf(stderr, "dmabuf.so: libibverbs has another table of operations\n");
		abort();
	}
	dlclose(lib);
}
